// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "tables.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "bytes.h"
#include "p2p/digest.h"

namespace p2p::weights {

namespace {

constexpr std::size_t kMostName = 4096;

tl::unexpected<Error> no_table(const std::string& of, const std::string& why) {
  return tl::unexpected(
      Error{ErrorCode::kProtocol, "The peer's table of " + of + " is refused: " + why + "."});
}

void put_numbers(Writer& out, std::span<const std::uint64_t> numbers) {
  for (const std::uint64_t number : numbers) out.number(number);
}

/// A manifest; without addresses, ranks and strides it is the same for all who want the same.
void put(Writer& out, const Manifest& manifest, bool places) {
  out.number(static_cast<std::uint32_t>(manifest.tensors()));
  for (std::uint32_t tensor = 0; tensor < manifest.tensors(); ++tensor) {
    const auto shape = manifest.shape(tensor);
    out.text(manifest.name(tensor));
    out.text(manifest.dtype(tensor).name);
    out.number(manifest.dtype(tensor).bytes);
    out.number(static_cast<std::uint32_t>(shape.size()));
    put_numbers(out, shape);
    out.number(static_cast<std::uint32_t>(manifest.shards(tensor)));
    for (std::size_t at = 0; at < manifest.shards(tensor); ++at) {
      const Shard shard = manifest.shard(tensor, at);
      put_numbers(out, shard.offset);
      put_numbers(out, shard.size);
      if (!places) continue;
      out.number(shard.rank);
      out.number(shard.address);
      for (const std::int64_t stride : shard.strides) out.number(static_cast<std::uint64_t>(stride));
    }
  }
}

using Numbers = std::array<std::uint64_t, kMaxDims>;

std::span<const std::uint64_t> take_numbers(Reader& in, std::size_t count, Numbers& into) {
  for (std::size_t i = 0; i < count; ++i) into[i] = in.number<std::uint64_t>();
  return std::span(into).first(count);
}

Status take_shard(Reader& in, Manifest& manifest, std::uint32_t tensor, bool places) {
  const std::size_t dims = manifest.shape(tensor).size();
  Numbers offset{}, size{};
  std::array<std::int64_t, kMaxDims> strides{};
  Shard shard;
  shard.offset = take_numbers(in, dims, offset);
  shard.size = take_numbers(in, dims, size);
  if (places) {
    shard.rank = in.number<std::uint32_t>();
    shard.address = in.number<std::uint64_t>();
    for (std::size_t d = 0; d < dims; ++d) strides[d] = static_cast<std::int64_t>(in.number<std::uint64_t>());
    shard.strides = std::span(strides).first(dims);
  }
  if (!in.ok()) return no_table("tensors", "it is cut off");
  return manifest.add_shard(tensor, shard);
}

Result<Manifest> take_manifest(Reader& in, bool places) {
  Manifest manifest;
  const std::uint32_t tensors = in.count(16);
  for (std::uint32_t row = 0; row < tensors; ++row) {
    std::string name(in.text(kMostName));
    DType dtype{std::string(in.text(kMostName)), 0};
    dtype.bytes = in.number<std::uint32_t>();
    const std::uint32_t dims = in.count(sizeof(std::uint64_t));
    if (!in.ok() || dims == 0 || dims > kMaxDims) return no_table("tensors", "it is cut off");
    Numbers shape{};
    const auto number = manifest.add_tensor(std::move(name), std::move(dtype), take_numbers(in, dims, shape));
    if (!number) return tl::unexpected(number.error());
    const std::uint32_t shards = in.count(2 * dims * sizeof(std::uint64_t));
    for (std::uint32_t at = 0; at < shards; ++at) {
      if (auto added = take_shard(in, manifest, *number, places); !added) {
        return tl::unexpected(std::move(added.error()));
      }
    }
  }
  if (!in.ok()) return no_table("tensors", "it is cut off");
  return manifest;
}

void put(Writer& out, const std::vector<RegionDescriptor>& regions) {
  out.number(static_cast<std::uint32_t>(regions.size()));
  for (const RegionDescriptor& region : regions) out.region(region);
}

Result<std::vector<RegionDescriptor>> take_regions(Reader& in) {
  std::vector<RegionDescriptor> regions(in.count(RegionDescriptor::kBytes));
  std::uint64_t last = 0;
  for (RegionDescriptor& region : regions) {
    region = in.region();
    if (region.address < last || region.size > ~region.address) return no_table("regions", "they overlap");
    last = region.address + region.size;
  }
  if (!in.at_end()) return no_table("regions", "it is cut off or too long");
  return regions;
}

void put(Writer& out, const Rename& rename) {
  out.text(rename.wanted);
  out.text(rename.owned);
  for (const auto* box : {&rename.wanted_offset, &rename.owned_offset, &rename.size}) {
    out.number(static_cast<std::uint32_t>(box->size()));
    put_numbers(out, *box);
  }
}

Rename take_rename(Reader& in) {
  Rename rename;
  rename.wanted = in.text(kMostName);
  rename.owned = in.text(kMostName);
  for (auto* box : {&rename.wanted_offset, &rename.owned_offset, &rename.size}) {
    box->resize(in.count(sizeof(std::uint64_t)));
    for (std::uint64_t& number : *box) number = in.number<std::uint64_t>();
  }
  return rename;
}

}  // namespace

std::uint64_t digest_of(std::string_view bytes) { return digest(std::as_bytes(std::span(bytes))); }

Result<Demand> Demand::make(const Manifest& wanted, std::vector<Rename> renames, std::uint64_t chunk_bytes) {
  Demand demand;
  for (std::uint32_t tensor = 0; tensor < wanted.tensors(); ++tensor) {
    const DType& dtype = wanted.dtype(tensor);
    const auto number = demand.wanted.add_tensor(wanted.name(tensor), dtype, wanted.shape(tensor));
    if (!number) return tl::unexpected(number.error());
    for (std::size_t at = 0; at < wanted.shards(tensor); ++at) {
      Shard shard = wanted.shard(tensor, at);
      shard.rank = 0, shard.strides = {}, shard.address = demand.bytes;
      if (auto added = demand.wanted.add_shard(*number, shard); !added) return tl::unexpected(added.error());
      const std::uint64_t bytes = wanted.bytes(tensor, at);
      if (bytes > (std::uint64_t{1} << 62) - demand.bytes) {
        return tl::unexpected(
            Error{ErrorCode::kInvalidArgument, "The wanted shards have more bytes than 62 bits count."});
      }
      demand.bytes += bytes;
    }
  }
  constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
  demand.renames = std::move(renames);
  demand.chunk_bytes =
      chunk_bytes != 0 ? chunk_bytes : std::clamp(demand.bytes / 128 / kMiB * kMiB, 4 * kMiB, 32 * kMiB);
  if (demand.bytes / demand.chunk_bytes >= kMostChunks) {
    return tl::unexpected(
        Error{ErrorCode::kInvalidArgument, std::to_string(demand.bytes) + " bytes in chunks of " +
                                               std::to_string(demand.chunk_bytes) + " are more than " +
                                               std::to_string(kMostChunks) + " chunks."});
  }
  return demand;
}

std::string Demand::encode() const {
  Writer out;
  out.number(chunk_bytes);
  out.number(static_cast<std::uint32_t>(renames.size()));
  for (const Rename& rename : renames) put(out, rename);
  put(out, wanted, false);
  return out.take();
}

Result<Demand> Demand::decode(std::string_view table) {
  Reader in(table);
  const auto chunk_bytes = in.number<std::uint64_t>();
  std::vector<Rename> renames(in.count(20));
  for (Rename& rename : renames) rename = take_rename(in);
  const auto wanted = take_manifest(in, false);
  if (!wanted) return tl::unexpected(wanted.error());
  if (!in.at_end() || chunk_bytes == 0 || chunk_bytes > kMostChunkBytes)
    return no_table("what it wants", "it is cut off or too long");
  return make(*wanted, std::move(renames), chunk_bytes);
}

std::string OwnedTable::encode(const Manifest& owned, const std::vector<RegionDescriptor>& regions) {
  Writer out;
  put(out, owned, true);
  put(out, regions);
  return out.take();
}

Result<OwnedTable> OwnedTable::decode(std::string_view table) {
  Reader in(table);
  auto owned = take_manifest(in, true);
  if (!owned) return tl::unexpected(std::move(owned.error()));
  auto regions = take_regions(in);
  if (!regions) return tl::unexpected(std::move(regions.error()));
  return OwnedTable{std::move(*owned), std::move(*regions)};
}

std::string HeldTable::encode(const std::vector<Piece>& pieces,
                              const std::vector<RegionDescriptor>& regions) {
  Writer out;
  out.number(static_cast<std::uint32_t>(pieces.size()));
  for (const Piece& piece : pieces) {
    out.number(piece.address);
    out.number(piece.bytes);
  }
  put(out, regions);
  return out.take();
}

Result<HeldTable> HeldTable::decode(std::string_view table, std::uint64_t bytes) {
  Reader in(table);
  HeldTable held;
  held.pieces.resize(in.count(2 * sizeof(std::uint64_t)));
  std::uint64_t packed = 0;
  for (Piece& piece : held.pieces) {
    piece = {packed, in.number<std::uint64_t>(), in.number<std::uint64_t>()};
    if (piece.bytes > bytes - packed || piece.bytes > ~piece.address) {
      return no_table("pieces", "they are more than the demand");
    }
    packed += piece.bytes;
  }
  if (packed != bytes) return no_table("pieces", "they are less than the demand");
  auto regions = take_regions(in);
  if (!regions) return tl::unexpected(std::move(regions.error()));
  held.regions = std::move(*regions);
  return held;
}

}  // namespace p2p::weights
