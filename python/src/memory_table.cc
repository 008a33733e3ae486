// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "memory_table.h"

#include <algorithm>
#include <string>
#include <utility>

#include "errors.h"

namespace p2p::python {
namespace {

std::byte* pointer(std::uint64_t address) { return reinterpret_cast<std::byte*>(address); }

tl::unexpected<Error> unknown_region(std::uint64_t id) {
  return failure(ErrorCode::kNotFound, "no memory region has the id " + std::to_string(id));
}

}  // namespace

Result<std::uint64_t> MemoryTable::add(Endpoint& engine, std::uint64_t address, std::size_t size) {
  Result<MemoryRegion> region = engine.register_memory(pointer(address), size);
  if (!region) return tl::unexpected(std::move(region.error()));
  const auto id = static_cast<std::uint64_t>(region->id());
  auto kept = std::make_shared<MemoryRegion>(std::move(*region));
  const std::lock_guard lock(mutex_);
  regions_.emplace(id, std::move(kept));
  return id;
}

Result<MemoryTable::Region> MemoryTable::find(std::uint64_t id) const {
  const std::lock_guard lock(mutex_);
  const auto found = regions_.find(id);
  if (found == regions_.end()) return unknown_region(id);
  return found->second;
}

Status MemoryTable::remove(std::uint64_t id, std::chrono::nanoseconds timeout) {
  const Result<Region> region = find(id);
  if (!region) return tl::unexpected(region.error());
  if (const Status released = (*region)->release(timeout); !released) return released;
  const std::lock_guard lock(mutex_);
  if (regions_.erase(id) == 0) return unknown_region(id);  // another thread was faster
  for (auto entry = implicit_.begin(); entry != implicit_.end();) {
    if (entry->second != id) {
      ++entry;
      continue;
    }
    std::erase(implicit_order_, entry->first);
    entry = implicit_.erase(entry);
  }
  std::erase_if(shared_, [id](const auto& entry) { return entry.second.id == id; });
  return {};
}

Result<RegionDescriptor> MemoryTable::describe(std::uint64_t id, std::uint64_t address,
                                               std::size_t size) const {
  const Result<Region> region = find(id);
  if (!region) return tl::unexpected(region.error());
  RegionDescriptor descriptor = (*region)->descriptor();
  const std::uint64_t offset = address - descriptor.address;
  if (address < descriptor.address || offset > descriptor.size || size > descriptor.size - offset) {
    return failure(ErrorCode::kOutOfRange, "describe " + std::to_string(size) + " bytes at " +
                                               std::to_string(address) + ": not within memory region " +
                                               std::to_string(id));
  }
  descriptor.address = address;
  descriptor.size = size;
  return descriptor;
}

MemoryPlace MemoryTable::place(std::uint64_t id) const {
  const Result<Region> region = find(id);
  return region ? (*region)->place() : MemoryPlace{};
}

Result<std::size_t> MemoryTable::room(const LocalSpan& span) const {
  const auto id = static_cast<std::uint64_t>(span.region);
  const auto found = regions_.find(id);
  if (found == regions_.end()) return unknown_region(id);
  const MemoryRegion& region = *found->second;
  const auto address = reinterpret_cast<std::uint64_t>(span.data);
  const std::uint64_t offset = address - reinterpret_cast<std::uint64_t>(region.data());
  if (span.data < region.data() || offset > region.size()) {
    return failure(ErrorCode::kOutOfRange, "address " + std::to_string(address) +
                                               " lies outside memory region " + std::to_string(id));
  }
  return region.size() - offset;
}

Status MemoryTable::check(std::span<const LocalSpan> spans) const {
  const std::lock_guard lock(mutex_);
  for (const LocalSpan& span : spans) {
    const Result<std::size_t> left = room(span);
    if (!left) return tl::unexpected(left.error());
    if (span.size > *left) {
      return failure(ErrorCode::kOutOfRange, std::to_string(span.size) + " bytes: memory region " +
                                                 std::to_string(static_cast<std::uint64_t>(span.region)) +
                                                 " ends " + std::to_string(*left) +
                                                 " bytes after their start");
    }
  }
  return {};
}

void MemoryTable::clip(std::span<LocalSpan> spans) const {
  const std::lock_guard lock(mutex_);
  for (LocalSpan& span : spans) {
    if (const Result<std::size_t> left = room(span); left && *left > 0)
      span.size = std::min(span.size, *left);
  }
}

Result<std::uint64_t> MemoryTable::implicit(Endpoint& engine, std::uint64_t address, std::size_t size) {
  Region stale;
  {
    const std::lock_guard lock(mutex_);
    // Of the ranges that start at or before the address, the nearest is the likely one.
    auto next = implicit_.upper_bound({address, ~std::size_t{0}});
    if (next != implicit_.begin()) {
      const auto [range, id] = *--next;
      const std::uint64_t offset = address - range.address;
      if (offset <= range.size && size <= range.size - offset) {
        if (const auto region = regions_.find(id); region != regions_.end() && region->second->alive()) {
          return id;
        }
        stale = take_implicit(range);
      }
    }
  }
  stale.reset();
  const Result<std::uint64_t> id = add(engine, address, size);
  if (!id) return id;
  Region evicted;
  const std::lock_guard lock(mutex_);
  implicit_.insert_or_assign({address, size}, *id);
  implicit_order_.push_back({address, size});
  if (implicit_order_.size() > kKept) evicted = take_implicit(Range(implicit_order_.front()));
  return id;
}

MemoryTable::Region MemoryTable::take_implicit(const Range& range) {
  std::erase(implicit_order_, range);
  const auto known = implicit_.extract(range);
  if (!known) return nullptr;
  auto region = regions_.extract(known.mapped());
  return region ? std::move(region.mapped()) : nullptr;
}

Result<std::uint64_t> MemoryTable::add_shared(Endpoint& engine, std::uint64_t address, std::size_t size) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = shared_.find({address, size}); found != shared_.end()) {
      ++found->second.users;
      return found->second.id;
    }
  }
  const Result<std::uint64_t> id = add(engine, address, size);
  if (!id) return id;
  const std::lock_guard lock(mutex_);
  shared_.insert_or_assign({address, size}, Shared{*id, 1});
  return id;
}

Status MemoryTable::remove_shared(std::uint64_t id, std::chrono::nanoseconds timeout) {
  {
    const std::lock_guard lock(mutex_);
    const auto found =
        std::ranges::find_if(shared_, [id](const auto& entry) { return entry.second.id == id; });
    if (found != shared_.end() && --found->second.users > 0) return {};
  }
  return remove(id, timeout);
}

void MemoryTable::clear() {
  std::unordered_map<std::uint64_t, Region> dropped;
  const std::lock_guard lock(mutex_);
  dropped.swap(regions_);
  implicit_.clear();
  implicit_order_.clear();
  shared_.clear();
}

}  // namespace p2p::python
