// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "tcpx/session.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "drivers/cuda/place.h"
#include "drivers/nccl_net/nearest.h"
#include "drivers/nccl_net/sigpipe.h"
#include "drivers/nccl_net/tcpx.h"
#include "drivers/nccl_net/tcpxo.h"
#include "tcpx/core.h"

namespace tcpx {

using p2p::ErrorCode;
using p2p::fail;
using p2p::Result;
using p2p::Status;

namespace {

/// Those that were named, else those next to the GPU: RxDM steers the flows of a GPU to no other NIC.
Result<std::vector<net::Device>> choose_devices(const net::Plugin& plugin, const TcpxOptions& options) {
  if (options.devices.empty() && options.cuda_device >= 0) {
    auto all = plugin.devices();
    if (!all) return all;
    const auto bus_id = p2p::cuda::bus_id_of(options.cuda_device);
    return net::nearest(*all, bus_id ? net::pci_path_of(*bus_id) : "");
  }
  std::vector<net::Device> devices;
  for (const int index : options.devices.empty() ? std::vector<int>{0} : options.devices) {
    auto device = plugin.device(index);
    if (!device) return tl::unexpected(device.error());
    devices.push_back(std::move(*device));
  }
  return devices;
}

Status check_device(const net::Plugin& plugin, const net::Device& device, const TcpxOptions& options) {
  if (options.host_pool) {
    if (Status has = net::check_host_pool(plugin); !has) return has;
  }
  const bool as_cuda = options.cuda_device >= 0 || options.host_pool;
  if (as_cuda) return net::check_registers_cuda(plugin, device);
  if (net::is_tcpxo(plugin.name())) {
    return fail(ErrorCode::kUnavailable, "{} of {} moves no host memory: name a CUDA device", device.label(),
                plugin.name());
  }
  if (!net::is_tcpx(plugin.name()) || !device.properties.unpacks()) return {};
  return fail(
      ErrorCode::kUnavailable,
      "{} of {} puts what it receives into the pool of a GPU: host memory cannot go through it, name a "
      "CUDA device",
      device.label(), plugin.name());
}

}  // namespace

TcpxSession::Core::Core(TcpxOptions options, std::shared_ptr<net::Plugin> plugin,
                        std::vector<net::Device> devices)
    : options_(std::move(options)), plugin_(std::move(plugin)), devices_(std::move(devices)) {}

TcpxSession::Core::~Core() {
  const OnDevice on_device(options_.cuda_device);
  remotes_.clear();
  leaving_.clear();
  arriving_.reset();
}

Result<std::uint64_t> TcpxSession::Core::register_memory(void* data, std::size_t size) {
  if (data == nullptr || size == 0)
    return fail(ErrorCode::kInvalidArgument, "register memory: an empty range");
  const auto place = p2p::cuda::place_of(data);
  if (!place) return tl::unexpected(place.error());
  if (place->kind == p2p::MemoryKind::kCuda && place->device != options_.cuda_device) {
    return fail(ErrorCode::kInvalidArgument, "register memory of CUDA device {}: the session is for {}",
                place->device, options_.cuda_device);
  }
  const net::abi::PointerType type = pointer_type(options_, place->kind == p2p::MemoryKind::kCuda);
  const bool as_cuda = type == net::abi::kPointerCuda;
  const std::size_t whole = as_cuda ? net::page_range(static_cast<std::byte*>(data), size).size : size;
  if (const std::size_t most = plugin_->net().max_registration_bytes(); whole > most) {
    return fail(ErrorCode::kInvalidArgument,
                "register memory of {} bytes: {} takes {} at once (ABI v{}); register parts", size,
                plugin_->name(), most, plugin_->version());
  }
  p2p::MutexLock lock(mutex_);
  memories_[++last_memory_] = {static_cast<std::byte*>(data), size, *place, type, 0};
  return last_memory_;
}

Status TcpxSession::Core::deregister_memory(std::uint64_t mem_id) {
  p2p::MutexLock lock(mutex_);
  const auto found = memories_.find(mem_id);
  if (found == memories_.end()) return fail(ErrorCode::kNotFound, "deregister memory {}: unknown", mem_id);
  if (found->second.uses != 0) {
    return fail(ErrorCode::kInvalidArgument, "deregister memory {}: {} chunks of it are under way", mem_id,
                found->second.uses);
  }
  const OnDevice on_device(options_.cuda_device);
  for (auto& [name, remote] : remotes_) {
    for (SendChannel& channel : remote.sends) channel.forget(mem_id);
    for (ReceiveChannel& channel : remote.receives) channel.forget(mem_id);
  }
  memories_.erase(found);
  return {};
}

Result<TcpxMemoryDescriptor> TcpxSession::Core::describe_memory(std::uint64_t mem_id) {
  p2p::MutexLock lock(mutex_);
  const auto found = memories_.find(mem_id);
  if (found == memories_.end()) return fail(ErrorCode::kNotFound, "describe memory {}: unknown", mem_id);
  const Memory& memory = found->second;
  return TcpxMemoryDescriptor{mem_id, reinterpret_cast<std::uintptr_t>(memory.data), memory.size,
                              memory.place};
}

std::string TcpxSession::Core::describe() const {
  std::string text = fmt::format("{} ({}), ABI v{}:", plugin_->name(), plugin_->path(), plugin_->version());
  for (const net::Device& device : devices_) {
    text += fmt::format(" {} ({} Mbit/s{})", device.label(), device.properties.speed,
                        device.properties.unpacks() ? ", UNPACK" : "");
  }
  return text;
}

Result<Remote*> TcpxSession::Core::find_remote(const std::string& name) {
  const auto found = remotes_.find(name);
  if (found == remotes_.end()) return fail(ErrorCode::kNotFound, "no connection with {}", name);
  if (found->second.error) return tl::unexpected(*found->second.error);
  return &found->second;
}

Status TcpxSession::Core::post(const std::string& name, Direction direction, const Range& range,
                               const std::shared_ptr<Progress>& progress) {
  p2p::MutexLock lock(mutex_);
  const auto remote = find_remote(name);
  if (!remote) return tl::unexpected(remote.error());
  const auto found = memories_.find(range.mem_id);
  if (found == memories_.end())
    return fail(ErrorCode::kNotFound, "memory {} is not registered", range.mem_id);
  Memory& memory = found->second;
  if (range.offset > memory.size || range.size > memory.size - range.offset) {
    return fail(ErrorCode::kOutOfRange, "{} bytes at {} of memory {}, which has {}", range.size, range.offset,
                range.mem_id, memory.size);
  }
  const bool send = direction == Direction::kSend;
  const std::size_t channels = send ? (*remote)->sends.size() : (*remote)->receives.size();
  if (channels == 0) {
    return fail(ErrorCode::kInvalidArgument, "{} {}: {} comes first", send ? "send to" : "receive from", name,
                send ? "connect" : "accept");
  }
  // An empty message is one chunk too: it meets the other side's.
  std::uint64_t at = 0;
  do {
    const std::size_t size = std::min<std::uint64_t>(options_.chunk_bytes, range.size - at);
    Chunk chunk{progress, range.mem_id, &memory, memory.data + range.offset + at, size};
    ++memory.uses;
    ++progress->left;
    if (send) {
      (*remote)->sends[(*remote)->next_send++ % channels].add(std::move(chunk));
    } else {
      (*remote)->receives[(*remote)->next_receive++ % channels].add(std::move(chunk));
    }
    at += size;
  } while (at < range.size);
  return {};
}

Result<bool> TcpxSession::Core::poll(const std::string& name, const Progress& progress) {
  const net::NoSigpipe quiet;
  const OnDevice on_device(options_.cuda_device);
  p2p::MutexLock lock(mutex_);
  if (const auto found = remotes_.find(name); found != remotes_.end()) progress_remote(found->second);
  if (progress.error) return tl::unexpected(*progress.error);
  return progress.left == 0;
}

std::string TcpxSession::Core::where_it_stands(const std::string& name) {
  std::string text;
  const auto add = [&](std::size_t count, const char* what) {
    if (count != 0) text += fmt::format("{}{} {}", text.empty() ? "" : "; ", count, what);
  };
  p2p::MutexLock lock(mutex_);
  const auto found = remotes_.find(name);
  if (found == remotes_.end()) return "there is no connection";
  std::size_t sends = 0, receives = 0, landings = 0, waiting = 0;
  for (const SendChannel& channel : found->second.sends) {
    sends += channel.under_way();
    waiting += channel.waiting();
  }
  for (const ReceiveChannel& channel : found->second.receives) {
    waiting += channel.waiting();
    receives += channel.under_way();
    landings += channel.to_unpack();
  }
  add(sends, "sends do not end: the other side posts no receives, is silent, or its pool is empty");
  add(landings, "receives have come and are not unpacked: the GPU is behind, and the pool fills");
  add(receives, landings != 0 ? "receives are posted behind them"
                              : "receives are posted and nothing comes: the other side is silent");
  if (text.empty()) add(waiting, "messages wait, and the plugin takes none of them");
  if (net::is_tcpx(plugin_->name()) && options_.cuda_device >= 0 &&
      !net::look_for_receive_manager().is_there()) {
    text += "; RxDM is gone: its sockets are no more";
  }
  return text.empty() ? "nothing is under way" : text;
}

/// What has come on any channel goes in one launch.
Status TcpxSession::Core::move(Remote& remote) {
  for (SendChannel& channel : remote.sends) {
    if (const auto sent = channel.progress(); !sent) return tl::unexpected(sent.error());
  }
  for (ReceiveChannel& channel : remote.receives) {
    if (const auto received = channel.receive(); !received) return tl::unexpected(received.error());
  }
  if (unpacker_) unpacker_->advance();
  for (ReceiveChannel& channel : remote.receives) {
    if (const auto finished = channel.finish(); !finished) return tl::unexpected(finished.error());
  }
  return {};
}

void TcpxSession::Core::progress_remote(Remote& remote) {
  if (!remote.error) {
    if (const Status moved = move(remote); !moved) remote.error = moved.error();
  }
  if (!remote.error) return;
  for (SendChannel& channel : remote.sends) channel.fail(*remote.error);
  for (ReceiveChannel& channel : remote.receives) channel.fail(*remote.error);
}

TcpxSession::TcpxSession(std::shared_ptr<Core> core) : core_(std::move(core)) {}
TcpxSession::TcpxSession(TcpxSession&&) noexcept = default;
TcpxSession& TcpxSession::operator=(TcpxSession&&) noexcept = default;
TcpxSession::~TcpxSession() = default;

Result<TcpxSession> TcpxSession::open(const TcpxOptions& options) {
  if (options.channels == 0 || options.channels > 64) {
    return fail(ErrorCode::kInvalidArgument, "{} channels: from 1 to 64 are possible", options.channels);
  }
  using Limits = p2p::NcclNetOptions;
  if (options.chunk_bytes < Limits::kLeastChunkBytes || options.chunk_bytes > Limits::kMostChunkBytes) {
    return fail(ErrorCode::kInvalidArgument, "chunks of {} bytes: from {} to {} are possible",
                options.chunk_bytes, Limits::kLeastChunkBytes, Limits::kMostChunkBytes);
  }
  if (options.window == 0 || options.window > Limits::kMostWindow) {
    return fail(ErrorCode::kInvalidArgument, "a window of {} requests: from 1 to {} are possible",
                options.window, Limits::kMostWindow);
  }
  const OnDevice on_device(options.cuda_device);
  auto plugin = net::Plugin::open(options.plugin, init_as_cuda_is());
  if (!plugin) return tl::unexpected(plugin.error());
  auto devices = choose_devices(**plugin, options);
  if (!devices) return tl::unexpected(devices.error());
  TcpxOptions allowed = options;
  for (const net::Device& device : *devices) {
    if (auto usable = check_device(**plugin, device, options); !usable) return tl::unexpected(usable.error());
    const auto bytes = net::allowed_chunk(**plugin, device, allowed.chunk_bytes);
    if (!bytes) return tl::unexpected(bytes.error());
    allowed.chunk_bytes = *bytes;
  }
  if (allowed.chunk_bytes < Limits::kLeastChunkBytes) {
    return fail(ErrorCode::kUnavailable,
                "{}: its environment allows messages of {} bytes, and {} are the least", (*plugin)->name(),
                allowed.chunk_bytes, Limits::kLeastChunkBytes);
  }
  return TcpxSession(std::make_shared<Core>(allowed, std::move(*plugin), std::move(*devices)));
}

Result<std::vector<std::byte>> TcpxSession::listen() { return core_->listen(); }

Status TcpxSession::accept(const std::string& remote_name, std::chrono::milliseconds timeout) {
  return core_->accept(remote_name, timeout);
}

Status TcpxSession::loadRemoteConnInfo(const std::string& remote_name, std::span<const std::byte> info) {
  return core_->load(remote_name, info);
}

Status TcpxSession::connect(const std::string& remote_name, std::chrono::milliseconds timeout) {
  return core_->connect(remote_name, timeout);
}

Result<std::uint64_t> TcpxSession::registerMemory(void* data, std::size_t size) {
  return core_->register_memory(data, size);
}

Status TcpxSession::deregisterMemory(std::uint64_t mem_id) { return core_->deregister_memory(mem_id); }

Result<TcpxMemoryDescriptor> TcpxSession::describeMemory(std::uint64_t mem_id) const {
  return core_->describe_memory(mem_id);
}

std::size_t TcpxSession::chunk_bytes() const { return core_->chunk_bytes(); }

std::string TcpxSession::describe() const { return core_->describe(); }

}  // namespace tcpx
