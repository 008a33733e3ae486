// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/stream/strided_ranges.h"

#include <algorithm>

namespace p2p::tcp {
namespace {

constexpr std::size_t kFewRanges = 4;

// Of strides, either way: a varint of eight bytes holds them.
constexpr std::uint64_t kMostDistance = std::uint64_t{1} << 54;

bool is_apart(std::uint64_t step, std::uint64_t block) {
  const std::uint64_t distance = step >> 63 != 0 ? std::uint64_t{0} - step : step;
  return distance >= block && distance < kMostDistance;
}

// What lies between the starts of neighbours, the first of which may lack its start.
class Steps {
 public:
  Steps(std::span<const RemoteRange> ranges, std::uint64_t first) : ranges_(ranges), first_(first) {}
  std::size_t size() const { return ranges_.size() - 1; }
  std::uint64_t operator[](std::size_t i) const {
    return ranges_[i + 1].address - (i == 0 ? first_ : ranges_[i].address);
  }

  /// The first one from `i` on that is another; `size()` if none is.
  std::size_t next_other(std::size_t i, std::uint64_t than) const {
    while (i != size() && (*this)[i] == than) ++i;
    return i;
  }

 private:
  const std::span<const RemoteRange> ranges_;
  const std::uint64_t first_;
};

// Rows that begin behind step `jump_at`, the only one so far that is no stride; false if there are none.
bool find_rows(const Steps& steps, std::size_t jump_at, StridedRanges& found) {
  const std::size_t next = steps.next_other(jump_at + 1, found.stride);
  found.jump = steps[jump_at];
  found.row = next - jump_at;
  if (next == steps.size()) found.row = std::max(found.row, jump_at + 1);
  found.begin = found.row - (jump_at + 1);
  return found.row > jump_at;
}

// What both sides ask of the fields.
bool make_sense(const StridedRanges& one, std::uint64_t count) {
  if (count < kFewRanges || one.block == 0 || one.block > kMaxPayloadBytes) return false;
  if (one.row < 2 || one.row > kMaxRanges || one.begin >= one.row) return false;
  if (one.skip >= one.block || one.cut >= one.block || !is_apart(one.stride, one.block)) return false;
  const bool one_row = count <= one.row - one.begin;
  return one_row ? one.jump == 0 : is_apart(one.jump, one.block);
}

bool describes(const StridedRanges& found, std::span<const RemoteRange> ranges) {
  if (!make_sense(found, ranges.size())) return false;
  const RemoteRange* range = ranges.data();
  return found.for_each(ranges.size(), [&range](std::uint64_t address, std::uint64_t size) {
    const bool same = *range == RemoteRange{address, size};
    ++range;
    return same;
  });
}

}  // namespace

std::optional<StridedRanges> StridedRanges::of(std::span<const RemoteRange> ranges) {
  if (ranges.size() < kFewRanges) return std::nullopt;
  StridedRanges found{.block = ranges[1].size};
  const RemoteRange& first = ranges.front();
  const std::uint64_t last_size = ranges.back().size;
  const std::uint64_t end = first.address + first.size;
  if (first.size > found.block || last_size > found.block || end < found.block) return std::nullopt;
  found.address = end - found.block;
  found.skip = found.block - first.size;
  found.cut = found.block - last_size;

  const Steps steps(ranges, found.address);
  found.stride = steps[0];
  const std::size_t other = steps.next_other(1, found.stride);
  if (other == steps.size()) {
    found.row = ranges.size();
    return describes(found, ranges) ? std::optional(found) : std::nullopt;
  }
  if (find_rows(steps, other, found) && describes(found, ranges)) return found;
  // The first range may be the last of its row.
  found.stride = steps[1];
  if (other == 1 && find_rows(steps, 0, found) && describes(found, ranges)) return found;
  return std::nullopt;
}

void StridedRanges::encode(Bytes& out) const {
  ByteWriter writer(out);
  writer.put(address);
  for (const std::uint64_t value : {block, zigzag(stride), row, zigzag(jump), begin, skip, cut}) {
    writer.put_varint(value);
  }
}

std::optional<StridedRanges> StridedRanges::decode(ByteReader& reader, std::uint64_t count) {
  StridedRanges found;
  found.address = reader.get<std::uint64_t>();
  found.block = reader.get_varint();
  found.stride = unzigzag(reader.get_varint());
  found.row = reader.get_varint();
  found.jump = unzigzag(reader.get_varint());
  found.begin = reader.get_varint();
  found.skip = reader.get_varint();
  found.cut = reader.get_varint();
  if (!reader.ok() || !make_sense(found, count)) return std::nullopt;
  return found;
}

}  // namespace p2p::tcp
