// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/memory/implicit_regions.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "transport/registration.h"

namespace p2p::engine {
namespace {

std::uint64_t address_of(const std::byte* data) { return reinterpret_cast<std::uint64_t>(data); }

RegionInfo covered_by(const MemoryRegion& region) {
  return {.id = region.id(), .key = {}, .base = region.data(), .size = region.size(), .place = {}};
}

bool covers(const RegionInfo& region, const LocalSpan& span) {
  return region.contains(address_of(span.data), span.size);
}

}  // namespace

Result<std::vector<ImplicitRegions::Kept>> ImplicitRegions::cover(std::span<LocalSpan> spans) {
  std::vector<Kept> held;
  std::vector<LocalSpan*> missing = name_known(spans, held);
  std::ranges::sort(missing, {}, [](const LocalSpan* span) { return span->data; });
  const std::size_t most = std::max(kKept, spans.size());
  for (std::span<LocalSpan*> left = missing; !left.empty();) {
    const auto [range, count] = first_run(left);
    const std::span<LocalSpan*> run = left.first(count);
    left = left.subspan(count);
    Result<Kept> region = add(range, most);
    if (region) {
      for (LocalSpan* const span : run) span->region = (*region)->id();
      held.push_back(std::move(*region));
      continue;
    }
    // What touches may all the same be memory of two kinds, or two allocations of a device.
    for (LocalSpan*& span : run) {
      region = add(first_run({&span, 1}).range, most);
      if (!region) return tl::unexpected(std::move(region.error()));
      span->region = (*region)->id();
      held.push_back(std::move(*region));
    }
  }
  return held;
}

ImplicitRegions::Run ImplicitRegions::first_run(std::span<LocalSpan* const> spans) {
  const std::byte* const begin = spans.front()->data;
  Run run{{address_of(begin), spans.front()->size}, 1};
  for (const LocalSpan* const span : spans.subspan(1)) {
    const auto offset = static_cast<std::size_t>(span->data - begin);
    if (offset > run.range.size) break;
    run.range.size = std::max(run.range.size, offset + span->size);
    ++run.spans;
  }
  return run;
}

std::vector<LocalSpan*> ImplicitRegions::name_known(std::span<LocalSpan> spans, std::vector<Kept>& held) {
  std::vector<LocalSpan*> missing;
  std::vector<Kept> stale;
  RegionInfo covered;
  MutexLock lock(mutex_);
  for (LocalSpan& span : spans) {
    // Whether memory was freed takes a call of the driver: once for a run of spans.
    if (held.empty() || !covers(covered, span)) {
      Kept region = known(span, stale);
      if (!region) {
        missing.push_back(&span);
        continue;
      }
      covered = covered_by(*region);
      held.push_back(std::move(region));
    }
    span.region = covered.id;
  }
  return missing;
}

ImplicitRegions::Kept ImplicitRegions::known(const LocalSpan& span, std::vector<Kept>& stale) {
  // Of the ranges that start at or before the address, the nearest is the likely one.
  auto next = regions_.upper_bound({address_of(span.data), ~std::size_t{0}});
  if (next == regions_.begin()) return nullptr;
  const auto& [range, entry] = *--next;
  if (!covers(covered_by(*entry.region), span)) return nullptr;
  if (!entry.region->alive()) {
    stale.push_back(take(Range(range)));
    return nullptr;
  }
  order_.splice(order_.end(), order_, entry.used);
  return entry.region;
}

Result<ImplicitRegions::Kept> ImplicitRegions::add(const Range& range, std::size_t most) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): it was a pointer
  Result<MemoryRegion> made = make_(reinterpret_cast<std::byte*>(range.address), range.size);
  if (!made) return tl::unexpected(std::move(made.error()));
  auto added = std::make_shared<MemoryRegion>(std::move(*made));
  std::vector<Kept> dropped;
  MutexLock lock(mutex_);
  dropped.push_back(take(range));  // of another thread that was faster
  order_.push_back(range);
  regions_.insert_or_assign(range, Entry{added, std::prev(order_.end())});
  while (order_.size() > most) dropped.push_back(take(Range(order_.front())));
  return added;
}

ImplicitRegions::Kept ImplicitRegions::take(const Range& range) {
  auto found = regions_.extract(range);
  if (!found) return nullptr;
  order_.erase(found.mapped().used);
  return std::move(found.mapped().region);
}

void ImplicitRegions::clear() {
  std::map<Range, Entry> dropped;
  MutexLock lock(mutex_);
  dropped.swap(regions_);
  order_.clear();
}

}  // namespace p2p::engine
