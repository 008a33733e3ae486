// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <span>
#include <thread>
#include <vector>

#include "baseline.h"
#include "block_list.h"
#include "buffer.h"
#include "child.h"
#include "failure.h"

namespace p2p::perf {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kBufferBytes = std::size_t{64} << 20;
constexpr std::chrono::milliseconds kCopyTime{300};
constexpr std::chrono::seconds kCopyPatience{20};
constexpr std::size_t kBlockBytes = 4096;
constexpr std::size_t kBlocks = 8192;
constexpr std::size_t kVector = 512;  // blocks a call

/// GB/s of a copy of `bytes` that is repeated for a while.
Result<double> repeat(std::size_t bytes, const std::function<Status()>& copy) {
  const auto start = Clock::now();
  std::uint64_t done = 0;
  do {
    if (const Status copied = copy(); !copied) return tl::unexpected(copied.error());
    done += bytes;
  } while (Clock::now() < start + kCopyTime);
  return static_cast<double>(done) / std::chrono::duration<double>(Clock::now() - start).count() / 1e9;
}

/// Memory of a child process that waits to be killed.
struct Target {
  Child child;
  std::uint64_t address = 0;
};

Result<Target> start_target() {
  auto child = Child::fork_body([](int pipe) {
    const auto pages = Pages::allocate(kBufferBytes);
    if (!pages) return 1;
    const std::string line = fmt::format("{}\n", reinterpret_cast<std::uintptr_t>(pages->bytes().data()));
    if (::write(pipe, line.data(), line.size()) < 0) return 1;
    for (;;) ::pause();
  });
  if (!child) return tl::unexpected(child.error());
  const auto line = child->read_line(kCopyPatience);
  if (!line) return tl::unexpected(line.error());
  Target target{std::move(*child), 0};
  std::from_chars(line->data(), line->data() + line->size(), target.address);
  return target;
}

Status write_vectors(const Target& target, std::span<iovec> local, std::span<iovec> remote) {
  const auto size = std::accumulate(local.begin(), local.end(), std::size_t{0},
                                    [](std::size_t sum, const iovec& piece) { return sum + piece.iov_len; });
  const ssize_t written =
      ::process_vm_writev(target.child.pid(), local.data(), local.size(), remote.data(), remote.size(), 0);
  if (written != static_cast<ssize_t>(size)) return fail_errno("process_vm_writev to a child process");
  return {};
}

/// One share of the blocks, a vector at a time.
Status write_share(const Target& target, std::span<iovec> local, std::span<iovec> remote) {
  for (std::size_t at = 0; at < local.size(); at += kVector) {
    const std::size_t count = std::min(kVector, local.size() - at);
    const Status done = write_vectors(target, local.subspan(at, count), remote.subspan(at, count));
    if (!done) return done;
  }
  return {};
}

/// GB/s of lists that are shared out over threads, each repeating its own part.
Result<double> measure_lists(const Target& target, std::vector<iovec> local, std::vector<iovec> remote,
                             std::size_t threads) {
  const std::size_t share = local.size() / threads;
  std::vector<Result<double>> speeds(threads, 0.0);
  std::vector<std::thread> running;
  running.reserve(threads);
  for (std::size_t i = 0; i < threads; ++i) {
    running.emplace_back([&, i] {
      const std::span mine = std::span(local).subspan(i * share, share);
      const std::span theirs = std::span(remote).subspan(i * share, share);
      const auto bytes = share * mine[0].iov_len;
      speeds[i] = repeat(bytes, [&] { return write_share(target, mine, theirs); });
    });
  }
  for (std::thread& thread : running) thread.join();
  double sum = 0;
  for (const Result<double>& speed : speeds) {
    if (!speed) return speed;
    sum += *speed;
  }
  return sum;
}

std::vector<iovec> halves(std::uint64_t base) {
  const std::size_t half = kBufferBytes / 2;
  return {{reinterpret_cast<void*>(base), half}, {reinterpret_cast<void*>(base + half), half}};
}

}  // namespace

Result<std::vector<Baseline>> measure_copies() {
  const auto target = start_target();
  if (!target) return tl::unexpected(target.error());
  const auto source = Pages::allocate(kBufferBytes);
  const auto sink = Pages::allocate(kBufferBytes);
  if (!source) return tl::unexpected(source.error());
  if (!sink) return tl::unexpected(sink.error());
  const auto base = reinterpret_cast<std::uintptr_t>(source->bytes().data());
  std::vector<Baseline> figures;
  const auto add = [&](std::string_view name, const char* text, const Result<double>& speed) {
    if (speed) figures.push_back({std::string(name), text, *speed, "GB/s"});
    return speed.has_value() ? Status{} : Status(tl::unexpected(speed.error()));
  };
  Status good = add(kMemcpy, "memcpy, 64 MiB, one thread", repeat(kBufferBytes, [&] {
                      std::memcpy(sink->bytes().data(), source->bytes().data(), kBufferBytes);
                      return Status{};
                    }));
  if (good) {
    good = add("process_vm_writev_one", "process_vm_writev, 64 MiB, one thread",
               measure_lists(*target, halves(base), halves(target->address), 1));
  }
  if (good) {
    good = add(kProcessCopy, "process_vm_writev, 64 MiB, two threads",
               measure_lists(*target, halves(base), halves(target->address), 2));
  }
  if (good) {
    good = add(kProcessCopyBlocks, "process_vm_writev, 8192 x 4 KiB shuffled, two threads",
               measure_lists(*target, shuffled_blocks(base, kBlocks, kBlockBytes, 1),
                             shuffled_blocks(target->address, kBlocks, kBlockBytes, 2), 2));
  }
  if (!good) return tl::unexpected(good.error());
  return figures;
}

}  // namespace p2p::perf
