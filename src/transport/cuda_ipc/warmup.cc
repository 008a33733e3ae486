// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cuda_ipc/warmup.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <utility>

#include "base/log.h"
#include "device/trial.h"
#include "drivers/cuda/device.h"

namespace p2p::cuda_ipc {
namespace {

// Peers whose probes are remembered: far more than a host has processes with GPUs.
constexpr std::size_t kMaxProbes = 256;

// The copies take some 10 us; a GPU that is full of other work is not waited for.
constexpr std::chrono::milliseconds kPatience{1};

// For measuring one pair of devices: twice what it takes between two GPUs with nothing else to do.
constexpr std::chrono::milliseconds kTrialTime{6};

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

}  // namespace

Warmup::Warmup(const device::Copier::Limits& limits, const Options& options,
               std::shared_ptr<Mappings> mappings)
    : defaults_(defaults_from(options)),
      measured_bulk_(options.gpu_measure && options.gpu_blocks != 0 && options.gpu_bulk_bytes == 0),
      measured_standby_(options.gpu_measure && limits.standby_ctas != 0 && options.gpu_standby_bytes == 0),
      copiers_(limits),
      mappings_(std::move(mappings)) {}

void Warmup::note_probe(const ProcessId& owner, const SharedMemory& memory) {
  const MutexLock lock(mutex_);
  if (probes_.size() >= kMaxProbes) probes_.clear();
  probes_.insert_or_assign(owner, memory);
}

std::optional<SharedMemory> Warmup::probe_of(const ProcessId& owner) const {
  const MutexLock lock(mutex_);
  const auto found = probes_.find(owner);
  if (found == probes_.end()) return std::nullopt;
  return found->second;
}

void Warmup::prepare(int device) { static_cast<void>(reserve(device)); }

bool Warmup::reserve(int device) {
  // One more than channels, so that one is free for rehearsals when regions come later.
  const Status reserved = copiers_.reserve(device, channels_ + 1);
  if (!reserved) {
    log(LogLevel::kDebug, "nothing is made ahead for CUDA device {}: {}", device, reserved.error().message);
  }
  return reserved.has_value();
}

void Warmup::prepare(int device, const PeerMemory& region) {
  const auto source = region.reach(device);
  if (!source || !reserve(device)) return;
  std::shared_ptr<const cuda::IpcMapping> mapping;  // until the copies have ended
  std::size_t bytes = std::min<std::uint64_t>(region.info().size, device::Copier::kRehearsed);
  if (const auto probe = probe_of(region.owner()); probe && !region.same_process()) {
    const auto on = cuda::find_device(probe->device);
    if (on && cuda::reaches(device, *on)) {
      if (auto mapped = mappings_->get(*probe, {}, device)) mapping = std::move(mapped->mapping);
    }
    if (mapping) bytes = std::min<std::uint64_t>(bytes, probe->size);
  }
  std::byte* const target = mapping ? mapping->data() : nullptr;
  bool ended = true;
  const auto kept = region.keep(device);  // to unmap chunks does not wait for copies
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  copiers_.for_each_free(device, [&](device::Copier& copier) {
    const Status rehearsed = copier.rehearse(*source, target, bytes);
    if (!rehearsed) log(LogLevel::kDebug, "a first copy: {}", rehearsed.error().message);
    while (!copier.quiet() && std::chrono::steady_clock::now() < deadline) continue;
    if (!copier.quiet()) ended = false;
  });
  const MutexLock lock(mutex_);
  if (ended) {
    late_[device].clear();
  } else {
    late_[device].push_back(kept);
  }
}

device::Ways Warmup::ways(int device, int peer) const {
  const MutexLock lock(mutex_);
  const auto found = ways_.find({device, peer});
  return found == ways_.end() ? defaults_ : found->second;
}

device::Ways Warmup::chosen(const device::Timings& timings) const {
  device::Ways ways = device::choose_ways(timings, defaults_);
  if (!measured_bulk_) ways.bulk_bytes = defaults_.bulk_bytes;
  if (!measured_standby_) ways.standby_bytes = defaults_.standby_bytes;
  return ways;
}

void Warmup::measure(int device, const PeerMemory& region) {
  const auto source = region.reach(device);
  if (!source || !(measured_bulk_ || measured_standby_)) return;
  const auto kept = region.keep(device);
  const std::pair pair(device, region.device());
  // Pieces double from one size to the next: a region that has room for no more of them tells nothing new.
  const std::uint64_t bytes = std::bit_floor(std::min(region.info().size, device::kTrialBytes));
  if (bytes < device::kLeastTrialBytes) return;
  device::Timings timings;
  {
    Trials& all = trials();
    const MutexLock lock(all.mutex);
    Trials::Trial& known = all.by_devices[pair];
    if (bytes > known.bytes) {
      auto tried = try_ways(device, *source, bytes, kept);
      if (!tried) {
        log(LogLevel::kInfo, "copies between CUDA devices {} and {} were not measured: {}", pair.first,
            pair.second, tried.error().message);
      }
      known.bytes = bytes;
      if (tried) known.timings = std::move(*tried);
    }
    timings = known.timings;
  }
  const device::Ways ways = chosen(timings);
  const MutexLock lock(mutex_);
  const auto [place, fresh] = ways_.try_emplace(pair, ways);
  const bool same =
      place->second.bulk_bytes == ways.bulk_bytes && place->second.standby_bytes == ways.standby_bytes;
  if (!fresh && same) return;
  place->second = ways;
  log(LogLevel::kInfo,
      "between CUDA devices {} and {}, pieces from {} KiB on go by copy engine, single ones up to {} KiB by "
      "the "
      "kernel that stands by ({} sizes measured)",
      pair.first, pair.second, ways.bulk_bytes >> 10, ways.standby_bytes >> 10,
      timings.lists.size() + timings.singles.size());
}

// Called by one thread at a time.
Result<device::Timings> Warmup::try_ways(int device, const std::byte* source, std::uint64_t bytes,
                                         const std::shared_ptr<const void>& kept) {
  cuda::DeviceBuffer& sink = sinks_[device];
  if (sink.data() == nullptr) {
    auto buffer = cuda::DeviceBuffer::allocate(device, device::kTrialBytes);
    if (!buffer) return tl::unexpected(std::move(buffer.error()));
    sink = std::move(*buffer);
  }
  auto copier = copiers_.take(device);
  if (!copier) return tl::unexpected(std::move(copier.error()));
  auto timings = device::try_ways(**copier, source, sink.data(), bytes, kTrialTime);
  if ((*copier)->unused()) {
    copiers_.give_back(std::move(*copier));
  } else {
    const MutexLock lock(mutex_);
    stuck_.push_back({kept, std::move(*copier)});
  }
  return timings;
}

}  // namespace p2p::cuda_ipc
