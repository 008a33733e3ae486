// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cuda_ipc/copies/warmup.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "base/log.h"
#include "drivers/cuda/device.h"
#include "drivers/cuda/mark.h"

namespace p2p::cuda_ipc {
namespace {

// Peers whose probes are remembered: far more than a host has processes with GPUs.
constexpr std::size_t kMaxProbes = 256;

// For two connections, as agents have that dial each other, and one more.
constexpr std::size_t kReserved = 2 * kChannels + 1;

// The copies take some 10 us; a GPU that is full of other work is not waited for.
constexpr std::chrono::milliseconds kForRehearsals{1};

device::Ways ways_from(const Options& options) {
  if (options.gpu_blocks == 0) return {};  // no kernels: all by copy engine
  return {.bulk_bytes = options.gpu_bulk_bytes, .standby_bytes = options.gpu_standby_bytes};
}

/// Once the copier has done what it has to do by now, whatever it is given later.
LateCopies::Ended passed_all(const device::Copier& copier) {
  auto marks = copier.marks();
  if (!marks) {
    log(LogLevel::kDebug, "when first copies end is not known: {}", marks.error().message);
    return [] { return false; };
  }
  // Work that failed has ended.
  return [marks = std::make_shared<const std::vector<cuda::StreamMark>>(std::move(*marks))] {
    return std::ranges::all_of(*marks, [](const auto& mark) { return mark.passed().value_or(true); });
  };
}

}  // namespace

Warmup::Warmup(const device::Copier::Limits& limits, const Options& options,
               std::shared_ptr<Mappings> mappings)
    : copiers_(limits), mappings_(std::move(mappings)), ways_(ways_from(options)) {}

void Warmup::note_probe(const ProcessId& owner, const SharedMemory& memory) {
  const MutexLock lock(mutex_);
  if (probes_.size() >= kMaxProbes) probes_.clear();
  probes_.insert_or_assign(owner, memory);
}

void Warmup::expect(int device) {
  static_cast<void>(ahead_.post([this, device] {
    reserve(device, 1);
    links_.open(device);
    reserve(device, kReserved);
  }));
}

std::optional<SharedMemory> Warmup::probe_of(const ProcessId& owner) const {
  const MutexLock lock(mutex_);
  const auto found = probes_.find(owner);
  if (found == probes_.end()) return std::nullopt;
  return found->second;
}

void Warmup::prepare(int device) { static_cast<void>(reserve(device, channels_ + 1)); }

bool Warmup::reserve(int device, std::size_t count) {
  const Status reserved = copiers_.reserve(device, count);
  if (!reserved) {
    log(LogLevel::kDebug, "nothing is made ahead for CUDA device {}: {}", device, reserved.error().message);
  }
  return reserved.has_value();
}

void Warmup::prepare(int device, const PeerMemory& region) {
  const auto source = region.reach(device);
  // One more than channels, so that one is free for rehearsals when regions come later.
  if (!source || !reserve(device, channels_ + 1) || !quiet()) return;
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
  const auto kept = region.keep(device);  // to unmap chunks does not wait for copies
  const auto deadline = std::chrono::steady_clock::now() + kForRehearsals;
  copiers_.for_each_free(device, [&](device::Copier& copier) {
    if (!quiet()) return;  // a first transfer has begun: it would wait for the driver
    const Status rehearsed = copier.rehearse(*source, target, bytes);
    if (!rehearsed) log(LogLevel::kDebug, "a first copy: {}", rehearsed.error().message);
    while (!copier.quiet() && std::chrono::steady_clock::now() < deadline) continue;
    if (kept && !copier.quiet()) late_.keep(kept, passed_all(copier));
  });
}

}  // namespace p2p::cuda_ipc
