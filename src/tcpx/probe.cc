// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <string_view>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/unique_fd.h"
#include "drivers/cuda/device.h"
#include "drivers/cuda/memory.h"
#include "drivers/cuda/place.h"
#include "drivers/nccl_net/comm.h"
#include "drivers/nccl_net/nearest.h"
#include "drivers/nccl_net/trial.h"
#include "tcpx/bindings.h"
#include "tcpx/core.h"
#include "tcpx/environment.h"

/// Each GPU with each of its NICs, once, in child processes: what goes wrong there may end the process.
namespace tcpx {
namespace {

using p2p::ErrorCode;
using p2p::fail;
using p2p::Result;
using p2p::Status;
using Verdict = Finding::Verdict;

constexpr std::chrono::seconds kConnect{20};
constexpr std::chrono::seconds kAll{300};
constexpr std::size_t kBytes = std::size_t{2} << 20;
// Between the fields of what a child tells, and behind each piece.
constexpr char kField = '\x1f';
constexpr char kEnd = '\x1e';

struct NicOfGpu {
  int gpu = 0;
  net::Device device;

  std::string name() const { return fmt::format("GPU {}, {}", gpu, device.label()); }
};

Result<std::vector<NicOfGpu>> all_pairs(const net::Plugin& plugin) {
  if (const Status available = p2p::cuda::available(); !available) {
    return tl::unexpected(available.error());
  }
  const auto devices = plugin.devices();
  if (!devices) return tl::unexpected(devices.error());
  std::vector<NicOfGpu> pairs;
  for (int gpu = 0; gpu < p2p::cuda::device_count(); ++gpu) {
    const auto bus_id = p2p::cuda::bus_id_of(gpu);
    for (net::Device& device : net::nearest(*devices, bus_id ? net::pci_path_of(*bus_id) : "")) {
      pairs.push_back({gpu, std::move(device)});
    }
  }
  return pairs;
}

/// A connection of this process with itself, on which nothing is sent.
struct Loop {
  net::RecvComm receives;
  net::SendComm sends;
};

Result<Loop> connect_to_self(const std::shared_ptr<net::Plugin>& plugin, const NicOfGpu& pair) {
  auto listener = net::Listener::open(plugin, pair.device, p2p::cuda::copy_now, pair.gpu);
  if (!listener) return tl::unexpected(listener.error());
  net::Connector connector(plugin, pair.device, listener->handle());
  std::optional<net::RecvComm> receives;
  std::optional<net::SendComm> sends;
  for (const auto end = std::chrono::steady_clock::now() + kConnect;
       std::chrono::steady_clock::now() < end;) {
    if (!sends) {
      if (Status moved = p2p::move_into(sends, connector.poll()); !moved)
        return tl::unexpected(moved.error());
    }
    if (!receives) {
      if (Status moved = p2p::move_into(receives, listener->poll()); !moved)
        return tl::unexpected(moved.error());
    }
    if (sends && receives) return Loop{std::move(*receives), std::move(*sends)};
    std::this_thread::yield();
  }
  return fail(ErrorCode::kTimedOut, "not ready after {} s", kConnect.count());
}

Status try_pair(const std::shared_ptr<net::Plugin>& plugin, const NicOfGpu& pair) {
  const p2p::cuda::DeviceGuard on_device(pair.gpu);
  if (!on_device.status()) return on_device.status();
  if (Status good = net::check_accepts(*plugin, receiving_gpu(pair.gpu)); !good) return good;
  if ((pair.device.properties.pointer_support & net::abi::kPointerCuda) == 0) {
    return fail(ErrorCode::kUnavailable, "{} moves host memory only", pair.device.label());
  }
  const auto memory = p2p::cuda::DeviceBuffer::allocate(pair.gpu, kBytes);
  if (!memory) return tl::unexpected(memory.error());
  const auto loop = connect_to_self(plugin, pair);
  if (!loop) return fail(loop.error().code, "connect to itself: {}", loop.error().message);
  const auto handle =
      net::register_with(loop->sends.comm, memory->data(), memory->size(), net::abi::kPointerCuda);
  return handle ? Status{} : tl::unexpected(handle.error());
}

/// What a child does: tells each pair's name before it is tried, and how that went.
void try_pairs(const std::string& name, std::size_t first, int told) {
  const auto tell = [told](std::initializer_list<std::string_view> fields) {
    std::string text = fmt::format("{}{}", fmt::join(fields, std::string_view(&kField, 1)), kEnd);
    return ::write(told, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  };
  const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (nowhere >= 0) ::dup2(nowhere, STDOUT_FILENO);
  const auto plugin = net::Plugin::open(name, init_as_cuda_is());
  const auto pairs = plugin ? all_pairs(**plugin) : tl::unexpected(plugin.error());
  if (!pairs) {
    tell({"probe"});
    tell({"bad", pairs.error().message});
    return;
  }
  for (std::size_t index = first; index < pairs->size(); ++index) {
    if (!tell({(*pairs)[index].name()})) return;
    const Status good = try_pair(*plugin, (*pairs)[index]);
    tell({good ? "good" : "bad", good ? "its memory can be registered" : good.error().message});
  }
}

std::string all_from(int descriptor) {
  std::string text;
  std::array<char, 4096> part{};
  for (ssize_t got = 0; (got = ::read(descriptor, part.data(), part.size())) > 0;) {
    text.append(part.data(), static_cast<std::size_t>(got));
  }
  return text;
}

std::string how_it_ended(const net::ChildEnd& end) {
  if (!end.in_time) return fmt::format("it was not through after {} s", kAll.count());
  if (end.crashed && end.code != 0) return fmt::format("the plugin ended the process by signal {}", end.code);
  return "the plugin ended the process";
}

/// What one child found; an unfinished pair counts as bad. True if none is left.
Result<bool> run_child(const std::string& plugin, std::vector<Finding>& findings) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0)
    return tl::unexpected(p2p::system_error("make a pipe"));
  const std::size_t first = findings.size();
  const auto end = net::run_in_child(kAll, [&] { try_pairs(plugin, first, ends[1]); });
  ::close(ends[1]);  // both are numbers: a child has no UniqueFd of its parent's
  const p2p::UniqueFd told(ends[0]);
  if (!end) return tl::unexpected(end.error());
  std::optional<std::string> begun;
  const std::string text = all_from(told.get());
  for (const std::string_view piece : split(text, kEnd)) {
    const auto fields = split(piece, kField);
    if (fields.size() == 2 && begun) {
      const bool good = fields[0] == "good";
      findings.push_back({good ? Verdict::kGood : Verdict::kBad, *begun, std::string(fields[1]), ""});
      begun.reset();
    } else {
      begun = piece;
    }
  }
  if (end->in_time && !end->crashed && end->code == 0 && !begun) return true;
  findings.push_back({Verdict::kBad, begun.value_or("probe"), how_it_ended(*end),
                      "UCCL_P2P_LOG_LEVEL=debug shows what the plugin says itself"});
  return !begun || !end->in_time;
}

}  // namespace

std::vector<Finding> probe(const std::string& plugin) {
  std::vector<Finding> findings;
  while (true) {
    const auto over = run_child(plugin, findings);
    if (!over) findings.push_back({Verdict::kBad, "probe", over.error().message, ""});
    if (over && !*over) continue;
    if (findings.empty()) findings.push_back({Verdict::kBad, "probe", "there is nothing to try", ""});
    return findings;
  }
}

}  // namespace tcpx
