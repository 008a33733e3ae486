// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cuda_ipc/regions.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "drivers/cuda/device.h"

namespace p2p::cuda_ipc {
namespace {

// Of all endpoints of the process: what lets two of them reach each other without handles.
class DeviceRegions {
 public:
  void add(std::weak_ptr<const LocalMemory> memory) {
    const MutexLock lock(mutex_);
    std::erase_if(regions_, [](const auto& region) { return region.expired(); });
    regions_.push_back(std::move(memory));
  }

  // Allocations with regions, the one at `base` apart, that begin in the same block of CUDA's.
  std::vector<AllocationId> neighbours(std::uint64_t base) {
    std::vector<std::shared_ptr<const LocalMemory>> regions;
    {
      const MutexLock lock(mutex_);
      for (const auto& weak : regions_) {
        if (auto region = weak.lock()) regions.push_back(std::move(region));
      }
    }
    std::vector<AllocationId> found;
    for (const auto& region : regions) {
      auto id = region->alive();
      if (!id || id->base == base || id->base >> kBlockBits != base >> kBlockBits) continue;
      const auto handle = cuda::ipc_handle_of(region->info().base);
      if (!handle) continue;
      id->handle = *handle;
      if (std::find(found.begin(), found.end(), *id) == found.end()) found.push_back(*id);
      if (found.size() == kMaxNeighbours) break;
    }
    return found;
  }

  bool has(const RegionInfo& wanted) {
    const MutexLock lock(mutex_);
    return std::any_of(regions_.begin(), regions_.end(), [&](const auto& weak) {
      const auto region = weak.lock();
      return region && region->info().key == wanted.key && region->info().base == wanted.base &&
             region->info().size == wanted.size;
    });
  }

 private:
  Mutex mutex_;
  std::vector<std::weak_ptr<const LocalMemory>> regions_ P2P_GUARDED_BY(mutex_);
};

Pins& pins() {
  static Pins pins;
  return pins;
}

DeviceRegions& device_regions() {
  static DeviceRegions regions;
  return regions;
}

}  // namespace

bool registered_here(const RegionInfo& region) { return device_regions().has(region); }

Result<std::shared_ptr<LocalMemory>> LocalMemory::make(const RegionInfo& region, const ProcessId& process) {
  auto memory = std::make_shared<LocalMemory>(region, process);
  if (region.place.kind == MemoryKind::kHost) return memory;
  const auto allocation = cuda::allocation_of(region.base);
  if (!allocation) return tl::unexpected(allocation.error());
  if (const Status whole = cuda::check_range(*allocation, region.base, region.size); !whole) {
    return tl::unexpected(whole.error());
  }
  memory->allocation_ = *allocation;
  if (!allocation->shareable) {
    log(LogLevel::kInfo, "region {}: other processes do not reach its device memory by cuda_ipc, for it {}",
        static_cast<std::uint32_t>(region.id), cuda::why_private(*allocation));
  }
  device_regions().add(memory);
  return memory;
}

std::optional<AllocationId> LocalMemory::alive() const {
  if (allocation_.base == nullptr || !check_alive()) return std::nullopt;
  return AllocationId{reinterpret_cast<std::uint64_t>(allocation_.base), allocation_.buffer_id, {}};
}

bool LocalMemory::ready_for_kernels() const {
  if (info().place.kind == MemoryKind::kCuda) return true;
  std::call_once(pin_once_, [this] {
    auto pinned = pins().pin(info().base, info().size);
    if (pinned) {
      pinned_ = std::move(*pinned);
    } else {
      log(LogLevel::kWarning, "cuda_ipc copies host memory unpinned: {}", pinned.error().message);
    }
  });
  // What somebody else pinned may be unpinned at any time.
  return pinned_ && (!pinned_->pins.empty() || cuda::pinned(info().base, info().size));
}

const std::vector<std::byte*>& LocalMemory::seams() const {
  static const std::vector<std::byte*> none;
  return pinned_ ? pinned_->seams : none;
}

void LocalMemory::pin_ahead() const {
  if (!begin_access()) return;
  static_cast<void>(ready_for_kernels());
  end_access();
}

Result<SharedMemory> LocalMemory::share() const {
  if (allocation_.base == nullptr) {
    return fail(ErrorCode::kUnavailable, "host memory is not shared between processes");
  }
  if (const Status alive = check_alive(); !alive) return tl::unexpected(alive.error());
  const auto uuid = cuda::uuid_of(allocation_.device);
  if (!uuid) return tl::unexpected(uuid.error());
  const auto handle = cuda::ipc_handle_of(info().base);
  if (!handle) return tl::unexpected(handle.error());
  return SharedMemory{.owner = process_,
                      .device = *uuid,
                      .handle = *handle,
                      .base = reinterpret_cast<std::uint64_t>(allocation_.base),
                      .size = allocation_.size,
                      .buffer_id = allocation_.buffer_id};
}

std::vector<std::byte> LocalMemory::export_key() const {
  auto memory = share();
  if (!memory) {
    return encode(ExportedKey{.memory = {}, .neighbours = {}, .refusal = std::move(memory.error().message)});
  }
  return encode(
      ExportedKey{.memory = *memory, .neighbours = device_regions().neighbours(memory->base), .refusal = ""});
}

Result<std::byte*> PeerMemory::reach(int device) const {
  const auto gone = [] { return fail(ErrorCode::kNotFound, "the peer has taken its memory back"); };
  {
    const MutexLock lock(mutex_);
    if (retired_) return gone();
    if (const auto known = reaches_.find(device); known != reaches_.end()) return known->second.region;
  }
  auto mapped = map(device);
  if (!mapped) return tl::unexpected(std::move(mapped.error()));
  {
    const MutexLock lock(mutex_);
    if (!retired_) return reaches_.try_emplace(device, std::move(*mapped)).first->second.region;
  }
  let_go(std::move(*mapped));
  return gone();
}

int PeerMemory::device_for_host() const {
  if (const int settled = host_device_.load(std::memory_order_relaxed); settled >= 0) return settled;
  const std::vector<int> active = cuda::active_devices();
  int device = device_;
  if (!active.empty() && std::find(active.begin(), active.end(), device_) == active.end()) {
    const auto near =
        std::find_if(active.begin(), active.end(), [&](int each) { return cuda::reaches(each, device_); });
    if (near != active.end()) device = *near;
  }
  host_device_.store(device, std::memory_order_relaxed);
  return device;
}

void PeerMemory::retire() const {
  std::map<int, Reach> reaches;
  {
    const MutexLock lock(mutex_);
    retired_ = true;
    reaches.swap(reaches_);
  }
  for (auto& [device, reach] : reaches) let_go(std::move(reach));
}

void PeerMemory::let_go(Reach reach) const {
  if (reach.mapping) mappings_->close(std::move(reach.mapping));
}

Result<PeerMemory::Reach> PeerMemory::map(int device) const {
  if (!cuda::reaches(device, device_)) {
    return fail(ErrorCode::kUnavailable, "CUDA devices {} and {} cannot reach each other's memory", device,
                device_);
  }
  if (same_process_) {
    if (const Status enabled = cuda::enable_peer(device, device_); !enabled) {
      return tl::unexpected(enabled.error());
    }
    return Reach{info().base, nullptr};
  }
  auto mapped = mappings_->get(memory_, neighbours_, device);
  if (!mapped) return tl::unexpected(mapped.error());
  const auto address = reinterpret_cast<std::uint64_t>(info().base);
  return Reach{mapped->data + (address - memory_.base), std::move(mapped->mapping)};
}

}  // namespace p2p::cuda_ipc
