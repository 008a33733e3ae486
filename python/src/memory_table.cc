// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "memory_table.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "convert/errors.h"

namespace p2p::python {
namespace {

std::byte* pointer(std::uint64_t address) { return reinterpret_cast<std::byte*>(address); }

/// The bytes from an address to its region's end; none outside of it.
std::optional<std::size_t> room_at(const MemoryRegion& region, const std::byte* data) {
  const auto offset = reinterpret_cast<std::uint64_t>(data) - reinterpret_cast<std::uint64_t>(region.data());
  if (data < region.data() || offset > region.size()) return std::nullopt;
  return region.size() - offset;
}

tl::unexpected<Error> unknown_region(std::uint64_t id) {
  return failure(ErrorCode::kNotFound, "no memory region has the id " + std::to_string(id));
}

}  // namespace

Result<RegionDescriptor> describe(const MemoryRegion& region, std::uint64_t address, std::size_t size) {
  RegionDescriptor descriptor = region.descriptor();
  const auto room = room_at(region, pointer(address));
  if (!room || size > *room) {
    return failure(ErrorCode::kOutOfRange, "describe " + std::to_string(size) + " bytes at " +
                                               std::to_string(address) + ": not within memory region " +
                                               std::to_string(static_cast<std::uint64_t>(descriptor.region)));
  }
  descriptor.address = address;
  descriptor.size = size;
  return descriptor;
}

Result<std::uint64_t> MemoryTable::add(Endpoint& engine, std::uint64_t address, std::size_t size,
                                       const RegionOptions& options) {
  Result<MemoryRegion> region = engine.register_memory(pointer(address), size, options);
  if (!region) return tl::unexpected(std::move(region.error()));
  const auto id = static_cast<std::uint64_t>(region->id());
  const std::lock_guard lock(mutex_);
  regions_.emplace(id, std::move(*region));
  return id;
}

Status MemoryTable::remove(std::uint64_t id, std::chrono::nanoseconds timeout) {
  // No other call may look at a region that is being released.
  decltype(regions_)::node_type region;
  {
    const std::lock_guard lock(mutex_);
    region = regions_.extract(id);
  }
  if (!region) return unknown_region(id);
  Status released = region.mapped().release(timeout);
  if (released) return released;
  const std::lock_guard lock(mutex_);
  regions_.insert(std::move(region));
  return released;
}

Result<RegionDescriptor> MemoryTable::describe(std::uint64_t id, std::uint64_t address,
                                               std::size_t size) const {
  const std::lock_guard lock(mutex_);
  const auto found = regions_.find(id);
  if (found == regions_.end()) return unknown_region(id);
  return python::describe(found->second, address, size);
}

MemoryPlace MemoryTable::place(std::uint64_t id) const {
  const std::lock_guard lock(mutex_);
  const auto found = regions_.find(id);
  return found == regions_.end() ? MemoryPlace{} : found->second.place();
}

Result<std::size_t> MemoryTable::room(const LocalSpan& span) const {
  const auto id = static_cast<std::uint64_t>(span.region);
  const auto found = regions_.find(id);
  if (found == regions_.end()) return unknown_region(id);
  if (const auto room = room_at(found->second, span.data)) return *room;
  return failure(ErrorCode::kOutOfRange, "address " +
                                             std::to_string(reinterpret_cast<std::uint64_t>(span.data)) +
                                             " lies outside memory region " + std::to_string(id));
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

void MemoryTable::clear() {
  decltype(regions_) dropped;
  const std::lock_guard lock(mutex_);
  dropped.swap(regions_);
}

}  // namespace p2p::python
