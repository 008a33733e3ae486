// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cuda_ipc/copies/quicker_ways.h"

#include <algorithm>
#include <bit>
#include <chrono>

#include "base/log.h"
#include "device/trial.h"

namespace p2p::cuda_ipc {
namespace {

using Clock = std::chrono::steady_clock;

// For measuring one pair of devices: twice what it takes between two GPUs with nothing else to do.
constexpr std::chrono::milliseconds kTrialTime{6};

// Without a copy for so long a program is taken to be between two pieces of work. It may begin the next one
// at any time: the measurement ends then, and what it was at is over within some 0.3 ms.
constexpr std::chrono::milliseconds kQuiet{5};

// A program that never pauses for as long as that goes on with the sizes that it has.
constexpr std::chrono::seconds kPatience{30};

// Where nothing is measured: what was best between two H200 over NVLink.
constexpr device::Ways kUnmeasured{.bulk_bytes = std::uint64_t{32} << 20,
                                   .standby_bytes = std::uint64_t{4} << 20};

device::Ways defaults_from(const Options& options) {
  device::Ways ways = kUnmeasured;
  if (options.gpu_bulk_bytes != 0) ways.bulk_bytes = options.gpu_bulk_bytes;
  if (options.gpu_standby_bytes != 0) ways.standby_bytes = options.gpu_standby_bytes;
  return options.gpu_blocks == 0 ? device::Ways{} : ways;
}

// What was measured in this process, whichever endpoint did.
struct Trials {
  struct Trial {
    device::Timings timings;
    std::uint64_t bytes = 0;  // of the largest piece that there was room for
  };
  Mutex mutex;  // also held while measuring: two at once would disturb each other
  std::map<std::pair<int, int>, Trial> by_devices P2P_GUARDED_BY(mutex);
};

Trials& trials() {
  static Trials all;
  return all;
}

// Pieces double from one size to the next: a region that has room for no more of them tells nothing new.
std::uint64_t trial_bytes(const PeerMemory& region) {
  return std::bit_floor(std::min(region.info().size, device::kTrialBytes));
}

}  // namespace

QuickerWays::QuickerWays(const Options& options, device::Copiers& copiers)
    : defaults_(defaults_from(options)),
      measures_bulk_(options.gpu_measure && options.gpu_blocks != 0 && options.gpu_bulk_bytes == 0),
      measures_standby_(options.gpu_measure && copiers.limits().standby_ctas != 0 &&
                        options.gpu_standby_bytes == 0),
      copiers_(copiers) {}

QuickerWays::~QuickerWays() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_all();
  measuring_.stop();
}

device::Ways QuickerWays::between(int device, int peer) const {
  const MutexLock lock(mutex_);
  const auto found = ways_.find({device, peer});
  return found == ways_.end() ? defaults_ : found->second;
}

void QuickerWays::find_out(int device, const PeerMemory& region, Lend lend) {
  if (!(measures_bulk_ || measures_standby_) || trial_bytes(region) < device::kLeastTrialBytes) return;
  static_cast<void>(measuring_.post(
      [this, device, &region, lend = std::move(lend)] { wait_and_measure(device, region, lend); }));
}

void QuickerWays::wait_and_measure(int device, const PeerMemory& region, const Lend& lend) {
  const auto until = Clock::now() + kPatience;
  std::uint64_t seen = 0;
  while (wait_for_quiet(seen)) {
    const auto lent = lend();
    if (!lent || measure(device, region, seen) == Outcome::kKnown || Clock::now() >= until) return;
  }
}

// False: it is time to end. Else nothing was copied for a while, and `seen` tells whether that is still so.
bool QuickerWays::wait_for_quiet(std::uint64_t& seen) {
  for (;;) {
    seen = begun_.load(std::memory_order_relaxed);
    {
      const MutexLock lock(mutex_);
      stopped_.wait_for(mutex_, kQuiet, [this]() P2P_REQUIRES(mutex_) { return stop_; });
      if (stop_) return false;
    }
    if (ended_.load(std::memory_order_relaxed) == seen && begun_.load(std::memory_order_relaxed) == seen) {
      return true;
    }
  }
}

QuickerWays::Outcome QuickerWays::measure(int device, const PeerMemory& region, std::uint64_t seen) {
  const std::pair devices(device, region.device());
  const std::uint64_t bytes = trial_bytes(region);
  Trials& all = trials();
  const MutexLock lock(all.mutex);
  Trials::Trial& known = all.by_devices[devices];
  if (bytes > known.bytes) {
    const auto source = region.reach(device);
    if (!source) return Outcome::kKnown;
    auto tried = try_ways(device, *source, bytes, region.keep(device), seen);
    if (!tried && tried.error().code == ErrorCode::kCancelled) return Outcome::kDisturbed;
    if (tried) {
      known.timings = std::move(*tried);
    } else {
      log(LogLevel::kInfo, "copies between CUDA devices {} and {} were not measured: {}", devices.first,
          devices.second, tried.error().message);
    }
    known.bytes = bytes;
  }
  settle(devices, known.timings);
  return Outcome::kKnown;
}

void QuickerWays::settle(const std::pair<int, int>& devices, const device::Timings& timings) {
  device::Ways ways = device::choose_ways(timings, defaults_);
  if (!measures_bulk_) ways.bulk_bytes = defaults_.bulk_bytes;
  if (!measures_standby_) ways.standby_bytes = defaults_.standby_bytes;
  const MutexLock lock(mutex_);
  const auto [place, fresh] = ways_.try_emplace(devices, ways);
  const bool same =
      place->second.bulk_bytes == ways.bulk_bytes && place->second.standby_bytes == ways.standby_bytes;
  if (!fresh && same) return;
  place->second = ways;
  log(LogLevel::kInfo,
      "between CUDA devices {} and {}, pieces from {} KiB on go by copy engine, single ones up to {} KiB by "
      "the kernel that stands by ({} sizes measured)",
      devices.first, devices.second, ways.bulk_bytes >> 10, ways.standby_bytes >> 10,
      timings.lists.size() + timings.singles.size());
}

Result<device::Timings> QuickerWays::try_ways(int device, const std::byte* source, std::uint64_t bytes,
                                              const std::shared_ptr<const void>& kept, std::uint64_t seen) {
  cuda::DeviceBuffer& sink = sinks_[device];
  if (sink.data() == nullptr) {
    auto buffer = cuda::DeviceBuffer::allocate(device, device::kTrialBytes);
    if (!buffer) return tl::unexpected(std::move(buffer.error()));
    sink = std::move(*buffer);
  }
  auto copier = copiers_.take(device);
  if (!copier) return tl::unexpected(std::move(copier.error()));
  auto timings = device::try_ways(**copier, {source, sink.data(), bytes}, kTrialTime,
                                  [&] { return begun_.load(std::memory_order_relaxed) == seen; });
  if ((*copier)->unused()) {
    copiers_.give_back(std::move(*copier));
  } else {
    late_.keep(kept,
               [stuck = std::shared_ptr<device::Copier>(std::move(*copier))] { return stuck->at_rest(); });
  }
  return timings;
}

}  // namespace p2p::cuda_ipc
