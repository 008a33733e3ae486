// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "memory.h"

#include <span>

#include "failure.h"

namespace p2p::nixl {

Result<LocalMemory*> Registrations::add(Endpoint& endpoint, const nixlBlobDesc& range, nixl_mem_t kind,
                                        bool read_only) {
  const Range key(range.addr, range.len);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): it was a pointer
  auto* const data = reinterpret_cast<std::byte*>(range.addr);
  RegionOptions options{.read_only = read_only, .peers = {}};
  const std::lock_guard lock(mutex_);
  const auto known = latest_.find(key);
  if (known != latest_.end() && known->second->count_ != 0) {
    LocalMemory& memory = *known->second;
    if (Status fits = check_place(kind, memory.descriptor_.place); !fits) return tl::unexpected(fits.error());
    if (memory.read_only_ != read_only) {
      return failure(ErrorCode::kInvalidArgument,
                     "register " + std::to_string(range.len) + " bytes that are registered already: peers " +
                         (read_only ? "may write there" : "may only read there"));
    }
    ++memory.count_;
    return &memory;
  }
  if (known != latest_.end()) {
    options.again = known->second->descriptor_;
    auto region = endpoint.register_memory(data, range.len, options);
    if (region && check_place(kind, region->place())) {
      LocalMemory& memory = *known->second;
      memory.region_ = std::move(*region);
      memory.read_only_ = read_only;
      memory.count_ = 1;
      return &memory;
    }
    options.again.reset();  // the address belongs to memory of another kind now
  }
  auto region = endpoint.register_memory(data, range.len, options);
  if (!region) return tl::unexpected(region.error());
  if (Status fits = check_place(kind, region->place()); !fits) return tl::unexpected(fits.error());
  auto memory = std::make_shared<LocalMemory>(std::move(*region), read_only);
  LocalMemory* const made = memory.get();
  if (const auto before = std::exchange(latest_[key], memory)) all_.erase(before.get());
  all_.emplace(made, std::move(memory));
  return made;
}

Status Registrations::remove(nixlBackendMD* memory, std::chrono::nanoseconds timeout) {
  std::unique_lock lock(mutex_);
  const auto found = all_.find(memory);
  if (found == all_.end() || found->second->count_ == 0) {
    return failure(ErrorCode::kNotFound,
                   "deregister memory that is not registered, or was given back already");
  }
  const std::shared_ptr<LocalMemory> last = found->second;
  if (--last->count_ != 0) return {};
  // Whoever registers the range meanwhile gets a region of its own.
  const Range range(last->descriptor_.address, last->descriptor_.size);
  const auto latest = latest_.find(range);
  if (latest != latest_.end() && latest->second == last) latest_.erase(latest);
  MemoryRegion region = std::move(last->region_);
  lock.unlock();
  Status released = region.release(timeout);
  lock.lock();
  if (!released) {
    last->region_ = std::move(region);
    last->count_ = 1;
    return released;
  }
  if (latest_.emplace(range, last).second) {
    idle_.push_back(last);
  } else {
    all_.erase(last.get());
  }
  if (idle_.size() > kMostIdle) forget(idle_.front());
  return {};
}

void Registrations::forget(const std::shared_ptr<LocalMemory>& memory) {
  const auto latest = latest_.find({memory->descriptor_.address, memory->descriptor_.size});
  if (latest != latest_.end() && latest->second == memory && memory->count_ == 0) {
    latest_.erase(latest);
    all_.erase(memory.get());
  }
  idle_.pop_front();
}

RemoteMemory* LoadedMemory::add(std::unique_ptr<RemoteMemory> memory) {
  RemoteMemory* const added = memory.get();
  const std::lock_guard lock(mutex_);
  all_.emplace(added, std::move(memory));
  return added;
}

void LoadedMemory::remove(const nixlBackendMD* memory) {
  const std::lock_guard lock(mutex_);
  all_.erase(memory);
}

Result<RemoteRegionId> RemoteMemory::import(const Peer::Link& link, bool again) const {
  const std::uint64_t known = imported_.load(std::memory_order_acquire);
  if (!again && known >> 32 == link.number) return static_cast<RemoteRegionId>(known & 0xffffffff);
  const auto id = link.connection.import_region(descriptor_, again);
  if (id) {
    imported_.store(std::uint64_t{link.number} << 32 | static_cast<std::uint32_t>(*id),
                    std::memory_order_release);
  }
  return id;
}

Result<RegionDescriptor> parse_public_data(const nixlBlobDesc& range, nixl_mem_t kind) {
  auto descriptor = RegionDescriptor::parse(std::as_bytes(std::span(range.metaInfo)));
  if (!descriptor) return descriptor;
  const std::uint64_t offset = range.addr - descriptor->address;
  if (offset > descriptor->size || range.len > descriptor->size - offset) {
    return failure(ErrorCode::kInvalidArgument,
                   "load a peer's memory: its description is of another range than its metadata");
  }
  if (const Status fits = check_place(kind, descriptor->place); !fits) return tl::unexpected(fits.error());
  return descriptor;
}

Status check_place(nixl_mem_t kind, const MemoryPlace& place) {
  if (kind == DRAM_SEG || (kind == VRAM_SEG && place.kind == MemoryKind::kCuda)) return {};
  if (kind == VRAM_SEG) {
    return failure(ErrorCode::kInvalidArgument,
                   "use memory as VRAM: it is host memory, or there is no CUDA here");
  }
  return failure(ErrorCode::kUnavailable,
                 "use memory of kind " + std::to_string(kind) + ": only DRAM and VRAM work");
}

}  // namespace p2p::nixl
