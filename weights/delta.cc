// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "delta.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "bytes.h"

namespace p2p::weights {

namespace {

// The first byte of a gap: below this the gap itself; the last value: four bytes with it follow; else the
// high bits of it, and a byte with the low ones follows. At 1 % of the units a gap is 1.1 bytes so, where
// seven bits a byte are 1.3.
constexpr std::uint32_t kTwoBytes = 224;
constexpr std::uint8_t kFiveBytes = 255;
constexpr std::uint32_t kMostInTwo = (kFiveBytes - kTwoBytes) * 256;

void put_gap(Writer& out, std::uint32_t gap) {
  if (gap < kTwoBytes) {
    out.number(static_cast<std::uint8_t>(gap));
  } else if (gap - kTwoBytes < kMostInTwo) {
    out.number(static_cast<std::uint8_t>(kTwoBytes + (gap - kTwoBytes) / 256));
    out.number(static_cast<std::uint8_t>((gap - kTwoBytes) % 256));
  } else {
    out.number(kFiveBytes);
    out.number(gap);
  }
}

std::uint32_t take_gap(Reader& in) {
  const auto first = in.number<std::uint8_t>();
  if (first < kTwoBytes) return first;
  if (first == kFiveBytes) return in.number<std::uint32_t>();
  return kTwoBytes + (first - kTwoBytes) * 256 + in.number<std::uint8_t>();
}

/// Of two ranges of equal size, from byte `at`; the size where there is none.
std::size_t first_difference(std::span<const std::byte> a, std::span<const std::byte> b, std::size_t at) {
  constexpr std::size_t kWord = sizeof(std::uint64_t);
  for (std::uint64_t x = 0, y = 0; at + kWord <= a.size(); at += kWord) {
    std::memcpy(&x, a.data() + at, kWord);
    std::memcpy(&y, b.data() + at, kWord);
    if (x != y) break;
  }
  while (at < a.size() && a[at] == b[at]) ++at;
  return at;
}

/// The bytes of a unit that lie in a chunk.
struct Unit {
  std::size_t begin = 0, end = 0;

  Unit(Grid grid, std::size_t number, std::size_t chunk)
      : begin(std::max<std::size_t>(number * grid.unit, grid.shift) - grid.shift),
        end(std::min((number + 1) * grid.unit - grid.shift, chunk)) {}
};

}  // namespace

std::vector<Grid> grids_of(const Demand& demand) {
  std::vector<Grid> grids(demand.chunks());
  std::vector<std::uint64_t> most(demand.chunks());
  for (std::uint32_t tensor = 0; tensor < demand.wanted.tensors(); ++tensor) {
    const std::uint32_t element = demand.wanted.dtype(tensor).bytes;
    const auto unit = static_cast<std::uint8_t>(1U << std::min(std::countr_zero(element), 3));
    for (std::size_t at = 0; at < demand.wanted.shards(tensor); ++at) {
      const Shard shard = demand.wanted.shard(tensor, at);
      const std::uint64_t end = shard.address + demand.wanted.bytes(tensor, at);
      for (std::uint64_t from = shard.address; from < end;) {
        const auto chunk = static_cast<std::uint32_t>(from / demand.chunk_bytes);
        const std::uint64_t to = std::min(end, demand.end(chunk));
        if (to - from > most[chunk]) {
          most[chunk] = to - from;
          grids[chunk] = {unit, static_cast<std::uint8_t>((demand.begin(chunk) - shard.address) % unit)};
        }
        from = to;
      }
    }
  }
  return grids;
}

std::optional<std::string> encode_delta(std::span<const std::byte> base, std::span<const std::byte> fresh,
                                        Grid grid, std::size_t most) {
  Writer out;
  out.number(grid.unit);
  out.number(grid.shift);
  std::size_t next = 0;  // the unit after the last one that differed
  for (std::size_t at = first_difference(base, fresh, 0); at < fresh.size();) {
    const std::size_t number = (at + grid.shift) / grid.unit;
    const Unit unit(grid, number, fresh.size());
    put_gap(out, static_cast<std::uint32_t>(number - next));
    out.raw({reinterpret_cast<const char*>(fresh.data() + unit.begin), unit.end - unit.begin});
    if (out.bytes().size() > most) return std::nullopt;
    next = number + 1;
    at = first_difference(base, fresh, unit.end);
  }
  return out.take();
}

bool apply_delta(std::string_view delta, std::span<std::byte> chunk) {
  Reader in(delta);
  const Grid grid{in.number<std::uint8_t>(), in.number<std::uint8_t>()};
  if (!in.ok() || !std::has_single_bit(grid.unit) || grid.unit > 8 || grid.shift >= grid.unit) return false;
  const std::size_t units = (chunk.size() + grid.shift + grid.unit - 1) / grid.unit;
  for (std::size_t next = 0; !in.at_end();) {
    const std::uint32_t gap = take_gap(in);
    if (!in.ok() || gap >= units - next) return false;
    const Unit unit(grid, next + gap, chunk.size());
    const std::string_view bytes = in.raw(unit.end - unit.begin);
    if (!in.ok()) return false;
    std::memcpy(chunk.data() + unit.begin, bytes.data(), bytes.size());
    next += gap + 1;
  }
  return true;
}

}  // namespace p2p::weights
