// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cuda_ipc/firsts.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/log.h"
#include "drivers/cuda/device.h"

namespace p2p::cuda_ipc {
namespace {

// Peers whose probes are remembered: far more than a host has processes with GPUs.
constexpr std::size_t kMaxProbes = 256;

// The copies take some 10 us; a GPU that is full of other work is not waited for.
constexpr std::chrono::milliseconds kPatience{5};

}  // namespace

void Firsts::note_probe(const ProcessId& owner, const SharedMemory& memory) {
  const MutexLock lock(mutex_);
  if (probes_.size() >= kMaxProbes) probes_.clear();
  probes_.insert_or_assign(owner, memory);
}

std::optional<SharedMemory> Firsts::probe_of(const ProcessId& owner) const {
  const MutexLock lock(mutex_);
  const auto found = probes_.find(owner);
  if (found == probes_.end()) return std::nullopt;
  return found->second;
}

void Firsts::prepare(int device, const PeerMemory& region) {
  const auto source = region.reach(device);
  if (!source) return;
  // One more than channels, so that one is free for this when regions come later.
  if (const Status reserved = copiers_.reserve(device, channels_ + 1); !reserved) {
    log(LogLevel::kDebug, "nothing is made ahead for CUDA device {}: {}", device, reserved.error().message);
    return;
  }
  std::shared_ptr<const cuda::IpcMapping> mapping;  // until the copies have ended
  std::size_t bytes = std::min<std::uint64_t>(region.info().size, device::Copier::kRehearsed);
  if (const auto probe = probe_of(region.memory().owner); probe && !region.same_process()) {
    const auto on = cuda::find_device(probe->device);
    auto opened = on && cuda::reaches(device, *on) ? mappings_->get(*probe, device)
                                                   : Result<std::shared_ptr<const cuda::IpcMapping>>(nullptr);
    if (opened) mapping = std::move(*opened);
    if (mapping) bytes = std::min<std::uint64_t>(bytes, probe->size);
  }
  std::byte* const target = mapping ? mapping->data() : nullptr;
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  copiers_.for_each_free(device, [&](device::Copier& copier) {
    const Status rehearsed = copier.rehearse(*source, target, bytes);
    if (!rehearsed) log(LogLevel::kDebug, "a first copy: {}", rehearsed.error().message);
    while (!copier.quiet() && std::chrono::steady_clock::now() < deadline) continue;
  });
}

}  // namespace p2p::cuda_ipc
