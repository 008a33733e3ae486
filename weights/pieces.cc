// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "pieces.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace p2p::weights {

namespace {

// As many as Endpoint::cover keeps.
constexpr std::size_t kMostKept = 4096;

std::uint64_t begin_of(const GpuRegions::Kept& region) {
  return reinterpret_cast<std::uint64_t>(region->data());
}

/// Gives the runs of a region that meet [begin, end) of the target, which no stride goes back in.
struct RunsWithin {
  const Region& region;
  std::uint64_t begin;
  std::uint64_t end;
  std::vector<Piece>& out;

  /// Bytes of the target from the first to the last one of the levels below `depth`.
  std::uint64_t extent(std::size_t depth) const {
    std::uint64_t bytes = region.run;
    for (std::size_t at = 0; at < depth; ++at) {
      bytes += (region.levels[at].count - 1) * static_cast<std::uint64_t>(region.levels[at].target_stride);
    }
    return bytes;
  }

  void add(std::size_t depth, std::uint64_t source, std::uint64_t target) {
    if (depth == 0) {
      const std::uint64_t from = std::max(target, begin), to = std::min(target + region.run, end);
      if (from < to) out.push_back({from, source + (from - target), to - from});
      return;
    }
    const Region::Level& level = region.levels[depth - 1];
    const auto stride = static_cast<std::uint64_t>(level.target_stride);
    const std::uint64_t inner = extent(depth - 1);
    std::uint64_t first = 0;
    if (target + inner <= begin) first = (begin - target - inner) / stride + 1;
    for (std::uint64_t i = first; i < level.count && target + i * stride < end; ++i) {
      add(depth - 1, source + i * static_cast<std::uint64_t>(level.source_stride), target + i * stride);
    }
  }
};

}  // namespace

std::vector<Piece> HeldPieces::within(std::uint64_t begin, std::uint64_t end) const {
  std::vector<Piece> out;
  auto at = std::ranges::upper_bound(pieces_, begin, {}, &Piece::packed);
  if (at != pieces_.begin()) --at;
  for (; at != pieces_.end() && at->packed < end; ++at) {
    const std::uint64_t from = std::max(at->packed, begin), to = std::min(at->packed + at->bytes, end);
    if (from < to) out.push_back({from, at->address + (from - at->packed), to - from});
  }
  return out;
}

Result<std::unique_ptr<OwnedPieces>> OwnedPieces::make(const Manifest& owned, const Demand& demand) {
  auto plan = Plan::make(owned, demand.wanted, demand.renames);
  if (!plan) return tl::unexpected(std::move(plan.error()));
  std::unique_ptr<OwnedPieces> pieces(new OwnedPieces(std::move(*plan)));
  for (std::uint32_t tensor = 0; tensor < demand.wanted.tensors(); ++tensor) {
    for (std::size_t at = 0; at < demand.wanted.shards(tensor); ++at) {
      if (demand.wanted.bytes(tensor, at) == 0) continue;
      pieces->shard_begins_.push_back(demand.wanted.shard(tensor, at).address);
    }
  }
  std::size_t shard = 0;  // the next one whose first region is to come
  for (std::size_t at = 0; at < pieces->plan_.size(); ++at) {
    const std::uint64_t target = pieces->plan_.region(at).target;
    for (; shard < pieces->shard_begins_.size() && pieces->shard_begins_[shard] <= target; ++shard) {
      pieces->shard_regions_.push_back(at);
    }
  }
  pieces->shard_regions_.push_back(pieces->plan_.size());
  return pieces;
}

std::vector<Piece> OwnedPieces::within(std::uint64_t begin, std::uint64_t end) const {
  std::vector<Piece> out;
  const auto above = std::ranges::upper_bound(shard_begins_, begin);
  auto shard = static_cast<std::size_t>(above - shard_begins_.begin());
  for (shard -= shard > 0 ? 1 : 0; shard < shard_begins_.size() && shard_begins_[shard] < end; ++shard) {
    for (std::size_t at = shard_regions_[shard]; at < shard_regions_[shard + 1]; ++at) {
      const Region region = plan_.region(at);
      RunsWithin{region, begin, end, out}.add(region.depth, region.source, region.target);
    }
  }
  std::ranges::sort(out, {}, &Piece::packed);
  return out;
}

Result<GpuRegions::Kept> GpuRegions::get(Endpoint& endpoint, void* data, std::uint64_t bytes) {
  Kept dropped;  // ends without the lock: that may wait for peers
  const std::lock_guard lock(mutex_);
  const std::pair range(data, bytes);
  if (const auto known = kept_.find(range); known != kept_.end()) {
    if (known->second->alive()) return known->second;
    dropped = std::move(kept_.extract(known).mapped());
  } else if (kept_.size() >= kMostKept) {
    const auto unused =
        std::ranges::find_if(kept_, [](const auto& row) { return row.second.use_count() == 1; });
    if (unused != kept_.end()) dropped = std::move(kept_.extract(unused).mapped());
  }
  // NVLink has no rights: what peers reach by themselves cannot be given to them to read alone.
  auto region = endpoint.register_memory(data, bytes, {.read_only = false, .peers = {}});
  if (!region) return tl::unexpected(std::move(region.error()));
  auto made = std::make_shared<const MemoryRegion>(std::move(*region));
  if (kept_.size() < kMostKept) kept_.emplace(range, made);
  return made;
}

Result<Lent> Lent::make(Endpoint& endpoint, GpuRegions& gpu, std::vector<Piece> ranges) {
  std::erase_if(ranges, [](const Piece& range) { return range.bytes == 0; });
  std::ranges::sort(ranges, {}, &Piece::address);
  std::vector<Piece> joined;
  for (const Piece& range : ranges) {
    if (!joined.empty() && (range.address < joined.back().address + joined.back().bytes ||
                            continues(joined.back(), range.address))) {
      Piece& last = joined.back();
      last.bytes = std::max(last.bytes, range.address + range.bytes - last.address);
    } else {
      joined.push_back(range);
    }
  }
  Lent lent;
  for (const Piece& range : joined) {
    auto* const data = reinterpret_cast<void*>(range.address);
    if (bytes_in_allocation(data) != std::numeric_limits<std::uint64_t>::max()) {
      auto region = gpu.get(endpoint, data, range.bytes);
      if (!region) return tl::unexpected(std::move(region.error()));
      lent.regions_.push_back(std::move(*region));
      continue;
    }
    auto region = endpoint.register_memory(static_cast<const void*>(data), range.bytes);
    if (!region) return tl::unexpected(std::move(region.error()));
    lent.regions_.push_back(std::make_shared<const MemoryRegion>(std::move(*region)));
  }
  return lent;
}

std::vector<RegionDescriptor> Lent::descriptors() const {
  std::vector<RegionDescriptor> out;
  for (const auto& region : regions_) out.push_back(region->descriptor());
  return out;
}

LocalSpan Lent::span(std::uint64_t address, std::uint64_t bytes) const {
  auto at = std::ranges::upper_bound(regions_, address, {}, begin_of);
  --at;
  return (*at)->span(address - begin_of(*at), bytes);
}

std::vector<LocalSpan> Lent::spans(const std::vector<Piece>& pieces) const {
  std::vector<LocalSpan> spans;
  spans.reserve(pieces.size());
  for (const Piece& piece : pieces) spans.push_back(span(piece.address, piece.bytes));
  return spans;
}

Result<Digest> Lent::digest(const Endpoint& endpoint, const std::vector<Piece>& pieces) const {
  return endpoint.digest(spans(pieces));
}

Status Lent::gather(const Endpoint& endpoint, const std::vector<Piece>& from,
                    std::vector<std::byte>& into) const {
  std::size_t bytes = 0;
  for (const Piece& piece : from) bytes += piece.bytes;
  into.resize(bytes);
  return endpoint.gather(spans(from), into);
}

Status Lent::scatter(const Endpoint& endpoint, const std::vector<std::byte>& from,
                     const std::vector<Piece>& into) const {
  return endpoint.scatter(from, spans(into));
}

bool Lent::on_host() const {
  return std::ranges::all_of(
      regions_, [](const auto& region) { return region->descriptor().place.kind == MemoryKind::kHost; });
}

bool Lent::overlaps(const Piece& range) const {
  const auto end = [](const auto& region) { return begin_of(region) + region->size(); };
  const auto at = std::ranges::upper_bound(regions_, range.address, {}, end);
  return at != regions_.end() && begin_of(*at) < range.address + range.bytes;
}

Result<std::unique_ptr<LentTable>> LentTable::make(Endpoint& endpoint, std::string bytes) {
  auto table = std::make_unique<LentTable>();
  table->bytes = std::move(bytes);
  auto region = endpoint.register_memory(static_cast<const void*>(table->bytes.data()), table->bytes.size());
  if (!region) return tl::unexpected(std::move(region.error()));
  table->region = std::move(*region);
  return table;
}

bool continues(const Piece& last, std::uint64_t address) {
  return last.address + last.bytes == address &&
         bytes_in_allocation(reinterpret_cast<const void*>(last.address)) > last.bytes;
}

std::size_t region_of(const std::vector<RegionDescriptor>& regions, std::uint64_t address,
                      std::uint64_t bytes) {
  const auto above = std::ranges::upper_bound(regions, address, {}, &RegionDescriptor::address);
  if (above == regions.begin()) return regions.size();
  const auto at = static_cast<std::size_t>(above - regions.begin()) - 1;
  const std::uint64_t into = address - regions[at].address;
  return into <= regions[at].size && bytes <= regions[at].size - into ? at : regions.size();
}

}  // namespace p2p::weights
