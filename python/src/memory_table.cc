// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "memory_table.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "errors.h"

namespace p2p::python {
namespace {

std::byte* pointer(std::uint64_t address) { return reinterpret_cast<std::byte*>(address); }

/// The bytes from an address to its region's end; none outside of it.
std::optional<std::size_t> room_at(const MemoryRegion& region, const std::byte* data) {
  const auto offset = reinterpret_cast<std::uint64_t>(data) - reinterpret_cast<std::uint64_t>(region.data());
  if (data < region.data() || offset > region.size()) return std::nullopt;
  return region.size() - offset;
}

bool holds(const MemoryRegion& region, const LocalSpan& span) {
  const auto room = room_at(region, span.data);
  return room && span.size <= *room;
}

tl::unexpected<Error> unknown_region(std::uint64_t id) {
  return failure(ErrorCode::kNotFound, "no memory region has the id " + std::to_string(id));
}

}  // namespace

Result<std::uint64_t> MemoryTable::add(Endpoint& engine, std::uint64_t address, std::size_t size,
                                       const RegionOptions& options) {
  Result<MemoryRegion> region = engine.register_memory(pointer(address), size, options);
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
    if (entry->second.id != id) {
      ++entry;
      continue;
    }
    implicit_order_.erase(entry->second.used);
    entry = implicit_.erase(entry);
  }
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
  if (const auto room = room_at(*found->second, span.data)) return *room;
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

Result<std::vector<MemoryTable::Region>> MemoryTable::implicit(Endpoint& engine, std::span<LocalSpan> spans) {
  std::vector<Region> held;
  std::vector<LocalSpan*> missing = name_known(spans, held);
  std::ranges::sort(missing, {}, [](const LocalSpan* span) { return span->data; });
  const std::size_t most = std::max(kKept, spans.size());
  for (std::span<LocalSpan*> left = missing; !left.empty();) {
    const auto [range, count] = first_run(left);
    const std::span<LocalSpan*> run = left.first(count);
    left = left.subspan(count);
    Result<Region> region = add_implicit(engine, range, most);
    if (region) {
      for (LocalSpan* const span : run) span->region = (*region)->id();
      held.push_back(std::move(*region));
      continue;
    }
    // What touches may all the same be memory of two kinds, or two allocations of a device.
    for (LocalSpan*& span : run) {
      region = add_implicit(engine, first_run({&span, 1}).range, most);
      if (!region) return tl::unexpected(std::move(region.error()));
      span->region = (*region)->id();
      held.push_back(std::move(*region));
    }
  }
  return held;
}

MemoryTable::Run MemoryTable::first_run(std::span<LocalSpan* const> spans) {
  const std::byte* const begin = spans.front()->data;
  Run run{{reinterpret_cast<std::uint64_t>(begin), spans.front()->size}, 1};
  for (const LocalSpan* const span : spans.subspan(1)) {
    const auto offset = static_cast<std::size_t>(span->data - begin);
    if (offset > run.range.size) break;
    run.range.size = std::max(run.range.size, offset + span->size);
    ++run.spans;
  }
  return run;
}

std::vector<LocalSpan*> MemoryTable::name_known(std::span<LocalSpan> spans, std::vector<Region>& held) {
  std::vector<LocalSpan*> missing;
  std::vector<Region> stale;
  const std::lock_guard lock(mutex_);
  for (LocalSpan& span : spans) {
    // Whether memory was freed takes a call of the driver: once for a run of spans.
    if (held.empty() || !holds(*held.back(), span)) {
      Region region = known(span, stale);
      if (!region) {
        missing.push_back(&span);
        continue;
      }
      held.push_back(std::move(region));
    }
    span.region = held.back()->id();
  }
  return missing;
}

MemoryTable::Region MemoryTable::known(const LocalSpan& span, std::vector<Region>& stale) {
  // Of the ranges that start at or before the address, the nearest is the likely one.
  auto next = implicit_.upper_bound({reinterpret_cast<std::uint64_t>(span.data), ~std::size_t{0}});
  if (next == implicit_.begin()) return nullptr;
  const auto& [range, entry] = *--next;
  const auto region = regions_.find(entry.id);
  if (region == regions_.end() || !holds(*region->second, span)) return nullptr;
  if (!region->second->alive()) {
    stale.push_back(take_implicit(Range(range)));
    return nullptr;
  }
  implicit_order_.splice(implicit_order_.end(), implicit_order_, entry.used);
  return region->second;
}

Result<MemoryTable::Region> MemoryTable::add_implicit(Endpoint& engine, const Range& range,
                                                      std::size_t most) {
  const Result<std::uint64_t> id = add(engine, range.address, range.size);
  if (!id) return tl::unexpected(id.error());
  std::vector<Region> evicted;
  const std::lock_guard lock(mutex_);
  Region added = regions_.at(*id);
  evicted.push_back(take_implicit(range));  // of another thread that was faster
  implicit_order_.push_back(range);
  implicit_.insert_or_assign(range, Implicit{*id, std::prev(implicit_order_.end())});
  while (implicit_order_.size() > most) evicted.push_back(take_implicit(Range(implicit_order_.front())));
  return added;
}

MemoryTable::Region MemoryTable::take_implicit(const Range& range) {
  const auto known = implicit_.extract(range);
  if (!known) return nullptr;
  implicit_order_.erase(known.mapped().used);
  auto region = regions_.extract(known.mapped().id);
  return region ? std::move(region.mapped()) : nullptr;
}

void MemoryTable::clear() {
  std::unordered_map<std::uint64_t, Region> dropped;
  const std::lock_guard lock(mutex_);
  dropped.swap(regions_);
  implicit_.clear();
  implicit_order_.clear();
}

}  // namespace p2p::python
