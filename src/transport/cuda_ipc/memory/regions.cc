// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cuda_ipc/memory/regions.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "drivers/cuda/device.h"
#include "transport/cuda_ipc/memory/chunk_fetch.h"

namespace p2p::cuda_ipc {
namespace {

// The system's first PID namespace has this number. In others two processes may have the same number, and
// CUDA then takes each for the other and refuses handles.
constexpr std::uint64_t kFirstPids = 0xeffffffc;

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

Result<std::shared_ptr<LocalMemory>> LocalMemory::make(const RegionInfo& region, const ProcessId& process,
                                                       std::weak_ptr<ChunkServer> server) {
  auto memory = std::make_shared<LocalMemory>(region, process, std::move(server));
  if (region.place.kind == MemoryKind::kHost) return memory;
  const auto allocation = cuda::allocation_of(region.base);
  if (!allocation) return tl::unexpected(allocation.error());
  if (allocation->mapped) {
    if (const auto chunks = cuda::chunks_of(*allocation, region.base, region.size); !chunks) {
      return tl::unexpected(chunks.error());
    }
  } else if (const Status whole = cuda::check_range(*allocation, region.base, region.size); !whole) {
    return tl::unexpected(whole.error());
  }
  device_regions().add(memory);
  return memory;
}

void LocalMemory::withdraw() const {
  const auto server = server_.lock();
  const MutexLock lock(mutex_);
  if (server && offer_) server->withdraw(*offer_);
}

std::optional<AllocationId> LocalMemory::alive() const {
  const cuda::Allocation& allocation = lifetime().allocation();
  if (allocation.base == nullptr || !check_alive()) return std::nullopt;
  return AllocationId{reinterpret_cast<std::uint64_t>(allocation.base), allocation.buffer_id, {}};
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
  if (const AccessGuard access(*this); access) static_cast<void>(ready_for_kernels());
}

Result<ExportedKey> LocalMemory::share() const {
  const cuda::Allocation& allocation = lifetime().allocation();
  if (allocation.base == nullptr) {
    return fail(ErrorCode::kUnavailable, "host memory is not shared between processes");
  }
  if (const Status alive = lifetime().check_all(info().id); !alive) return tl::unexpected(alive.error());
  ExportedKey key;
  if (allocation.mapped) {
    auto chunks = share_chunks();
    if (!chunks) return tl::unexpected(std::move(chunks.error()));
    key.chunks = *chunks;
    return key;
  }
  const auto uuid = cuda::uuid_of(allocation.device);
  if (!uuid) return tl::unexpected(uuid.error());
  const auto handle = cuda::ipc_handle_of(info().base);
  if (!handle) return tl::unexpected(handle.error());
  key.memory = SharedMemory{.owner = process_,
                            .device = *uuid,
                            .handle = *handle,
                            .base = reinterpret_cast<std::uint64_t>(allocation.base),
                            .size = allocation.size,
                            .buffer_id = allocation.buffer_id};
  key.neighbours = device_regions().neighbours(key.memory->base);
  if (process_.pid_namespace != kFirstPids) key.ring = offer_ring();
  return key;
}

Result<ChunkedMemory> LocalMemory::share_chunks() const {
  const std::vector<cuda::Chunk>& chunks = lifetime().chunks();
  if (chunks.size() > kMaxChunks) {
    return fail(ErrorCode::kUnavailable, "its {} chunks are too many ({} at most)", chunks.size(),
                kMaxChunks);
  }
  const auto uuid = cuda::uuid_of(lifetime().allocation().device);
  if (!uuid) return tl::unexpected(uuid.error());
  const auto offer = offer_chunks();
  if (!offer) return tl::unexpected(offer.error());
  ChunkedMemory memory{.owner = process_,
                       .device = *uuid,
                       .ticket = *offer,
                       .base = reinterpret_cast<std::uint64_t>(chunks.front().base),
                       .size = 0,
                       .count = static_cast<std::uint32_t>(chunks.size())};
  for (const cuda::Chunk& chunk : chunks) memory.size += chunk.size;
  return memory;
}

Result<Ticket> LocalMemory::offer_chunks() const {
  const std::vector<cuda::Chunk>& chunks = lifetime().chunks();
  if (!shareable() || chunks.empty()) {
    return fail(
        ErrorCode::kUnavailable,
        "its memory cannot be shared between processes: it was mapped with cuMemMap, and made without a "
        "handle type for that, or with FABRIC alone (make it with CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR; "
        "PyTorch's expandable segments are from 2.5 on)");
  }
  const auto server = server_.lock();
  if (!server) return fail(ErrorCode::kUnavailable, "the endpoint is being closed");
  const MutexLock lock(mutex_);
  if (offer_) return *offer_;
  auto made = server->offer(chunks, [weak = weak_from_this()]() -> Result<std::shared_ptr<const void>> {
    if (const auto memory = weak.lock()) {
      auto access = std::make_shared<const AccessGuard>(memory);
      if (*access) return access;
    }
    return fail(ErrorCode::kNotFound, "it has taken the memory back");
  });
  if (made) offer_ = *made;
  return made;
}

std::vector<std::byte> LocalMemory::export_key() const {
  const auto key = share();
  if (key) return encode(*key);
  ExportedKey refused{.refusal = key.error().message};
  refused.is_private = lifetime().allocation().base != nullptr && key.error().code == ErrorCode::kUnavailable;
  if (refused.is_private) refused.ring = offer_ring();
  return encode(refused);
}

std::optional<RingTicket> LocalMemory::offer_ring() const {
  const auto server = server_.lock();
  if (!server) return std::nullopt;
  const auto offer = server->offer_lease(info().place.device);
  if (!offer) return std::nullopt;
  return RingTicket{process_, *offer};
}

bool LocalMemory::shareable() const {
  const cuda::Allocation& allocation = lifetime().allocation();
  if (allocation.base == nullptr || !allocation.mapped)
    return allocation.base != nullptr && allocation.shareable;
  return !server_.expired() && std::ranges::all_of(lifetime().chunks(), &cuda::Chunk::exportable);
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

std::shared_ptr<const void> PeerMemory::keep(int device) const {
  const MutexLock lock(mutex_);
  const auto known = reaches_.find(device);
  return known == reaches_.end() ? nullptr : known->second.window;
}

int PeerMemory::device_for_host() const {
  if (const int settled = host_device_.load(std::memory_order_relaxed); settled >= 0) return settled;
  const std::vector<int> active = cuda::active_devices();
  int device = std::max(device_, 0);
  if (!active.empty() && std::find(active.begin(), active.end(), device_) == active.end()) {
    const auto near = std::find_if(active.begin(), active.end(), [&](int each) {
      return device_ == kHiddenDevice || cuda::reaches(each, device_);
    });
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
  if (reach.window) mappings_->close(std::move(reach.window));
}

Result<PeerMemory::Reach> PeerMemory::map(int device) const {
  if (device_ != kHiddenDevice && !cuda::reaches(device, device_)) {
    return fail(ErrorCode::kUnavailable, "CUDA devices {} and {} cannot reach each other's memory", device,
                device_);
  }
  if (same_process_) return map_own(device);
  return key_.chunks ? map_chunks(device) : map_allocation(device);
}

Result<PeerMemory::Reach> PeerMemory::map_allocation(int device) const {
  auto mapped = mappings_->get(*key_.memory, key_.neighbours, device);
  if (!mapped) return tl::unexpected(mapped.error());
  const auto address = reinterpret_cast<std::uint64_t>(info().base);
  return Reach{mapped->data + (address - key_.memory->base), std::move(mapped->mapping), nullptr};
}

// One window serves all devices. The first may use each chunk once it is mapped: the owner exports others
// meanwhile.
Result<PeerMemory::Reach> PeerMemory::map_chunks(int device) const {
  const MutexLock lock(fetching_);
  auto window = window_.lock();
  Status allowed;
  if (window) {
    allowed = window->allow(device);
  } else {
    auto made = cuda::Window::reserve(key_.chunks->size);
    if (!made) return tl::unexpected(made.error());
    const auto take = [&](const UniqueFd& chunk, std::uint64_t size) {
      const std::uint64_t from = made->mapped();
      Status added = made->add(chunk, size);
      return added ? made->allow(device, from) : added;
    };
    allowed = fetch_chunks(*key_.chunks, take, place_);
    window = std::make_shared<const cuda::Window>(std::move(*made));
    if (allowed) window_ = window;
  }
  if (!allowed) return tl::unexpected(std::move(allowed.error()));
  const auto address = reinterpret_cast<std::uint64_t>(info().base);
  return Reach{window->data() + (address - key_.chunks->base), nullptr, std::move(window)};
}

// What was mapped chunk by chunk is mapped a second time for another device: who may use the first mapping is
// the program's affair.
Result<PeerMemory::Reach> PeerMemory::map_own(int device) const {
  if (!key_.chunks || device == device_) {
    if (const Status enabled = cuda::enable_peer(device, device_); !enabled) {
      return tl::unexpected(enabled.error());
    }
    return Reach{info().base, nullptr, nullptr};
  }
  const auto allocation = cuda::allocation_of(info().base);
  if (!allocation) return tl::unexpected(allocation.error());
  const auto chunks = cuda::chunks_of(*allocation, info().base, info().size);
  if (!chunks) return tl::unexpected(chunks.error());
  std::uint64_t size = 0;
  for (const cuda::Chunk& chunk : *chunks) size += chunk.size;
  auto window = cuda::Window::reserve(size);
  for (std::size_t i = 0; window && i < chunks->size(); ++i) {
    if (const Status added = window->add((*chunks)[i]); !added) return tl::unexpected(added.error());
  }
  if (!window) return tl::unexpected(window.error());
  if (const Status allowed = window->allow(device); !allowed) return tl::unexpected(allowed.error());
  std::byte* const region = window->data() + (info().base - chunks->front().base);
  return Reach{region, nullptr, std::make_shared<const cuda::Window>(std::move(*window))};
}

}  // namespace p2p::cuda_ipc
