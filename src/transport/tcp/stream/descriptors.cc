// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/stream/descriptors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <span>

#include "base/error.h"
#include "base/underlying.h"
#include "transport/registration.h"
#include "transport/tcp/stream/frame.h"

namespace p2p::tcp {
namespace {

enum class Encoding : std::uint8_t { kList = 0, kPaged = 1, kStrided = 2 };

constexpr std::size_t kMaxVarintBytes = 10;

std::size_t varint_bytes(std::uint64_t value) {
  return (static_cast<std::size_t>(std::bit_width(value | 1)) + 6) / 7;
}

std::byte* put_varint(std::byte* out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) *out++ = static_cast<std::byte>(value | 0x80);
  *out++ = static_cast<std::byte>(value);
  return out;
}

template <class T>
std::byte* put(std::byte* out, const T& value) {
  std::memcpy(out, &value, sizeof value);
  return out + sizeof value;
}

// The lowest address, if the ranges can be written as indices of equal blocks from there.
std::optional<std::uint64_t> paged_base(std::span<const RemoteRange> ranges) {
  const std::uint64_t size = ranges.front().size;
  std::uint64_t base = ranges.front().address;
  for (const RemoteRange& range : ranges) {
    if (range.size != size) return std::nullopt;
    base = std::min(base, range.address);
  }
  for (const RemoteRange& range : ranges) {
    const std::uint64_t distance = range.address - base;
    if (distance % size != 0 || distance / size > std::numeric_limits<std::uint32_t>::max()) {
      return std::nullopt;
    }
  }
  return base;
}

std::size_t list_bytes(std::span<const RemoteRange> ranges) {
  std::size_t bytes = 0;
  std::uint64_t end = 0;
  for (const RemoteRange& range : ranges) {
    bytes += varint_bytes(zigzag(range.address - end)) + varint_bytes(range.size);
    end = range.address + range.size;
  }
  return bytes;
}

std::byte* put_list(std::byte* out, std::span<const RemoteRange> ranges) {
  std::uint64_t end = 0;
  for (const RemoteRange& range : ranges) {
    out = put_varint(out, zigzag(range.address - end));
    out = put_varint(out, range.size);
    end = range.address + range.size;
  }
  return out;
}

std::byte* put_pages(std::byte* out, std::span<const RemoteRange> ranges, std::uint64_t base) {
  const std::uint64_t size = ranges.front().size;
  out = put(out, base);
  out = put_varint(out, size);
  for (const RemoteRange& range : ranges) {
    out = put(out, static_cast<std::uint32_t>((range.address - base) / size));
  }
  return out;
}

void encode_strided(const RangeGroup& group, const StridedRanges& strided, Bytes& out) {
  ByteWriter writer(out);
  writer.put(to_underlying(group.region));
  writer.put(group.key);
  writer.put(to_underlying(Encoding::kStrided));
  writer.put_varint(group.count);
  strided.encode(out);
}

void encode_group(const RangeGroup& group, std::span<const RemoteRange> ranges, Bytes& out) {
  if (const auto strided = StridedRanges::of(ranges)) return encode_strided(group, *strided, out);
  const std::optional<std::uint64_t> base = paged_base(ranges);
  const std::size_t as_list = list_bytes(ranges);
  const std::size_t as_pages = sizeof(std::uint64_t) + varint_bytes(ranges.front().size) + 4 * ranges.size();
  const bool paged = base && as_pages < as_list;

  const std::size_t start = out.size();
  out.resize(start + sizeof group.region + sizeof group.key + 1 + kMaxVarintBytes +
             (paged ? as_pages : as_list));
  std::byte* end = put(out.data() + start, group.region);
  end = put(end, group.key);
  end = put(end, paged ? Encoding::kPaged : Encoding::kList);
  end = put_varint(end, ranges.size());
  end = paged ? put_pages(end, ranges, *base) : put_list(end, ranges);
  out.resize(static_cast<std::size_t>(end - out.data()));
}

// Appends ranges and keeps the sum; false for what no honest peer sends. Where they lie is for the
// registration to judge.
class Collector {
 public:
  Collector(std::uint64_t total, std::vector<RemoteRange>& ranges) : left_(total), ranges_(ranges) {}

  bool add(std::uint64_t address, std::uint64_t size) {
    if (size == 0 || size > left_) return false;
    left_ -= size;
    ranges_.push_back({address, size});
    return true;
  }

  bool complete() const { return left_ == 0; }

 private:
  std::uint64_t left_;
  std::vector<RemoteRange>& ranges_;
};

bool take_list(ByteReader& reader, std::uint64_t count, Collector& collector) {
  std::uint64_t end = 0;
  for (; count != 0; --count) {
    const std::uint64_t address = end + unzigzag(reader.get_varint());
    const std::uint64_t size = reader.get_varint();
    if (!reader.ok() || !collector.add(address, size)) return false;
    end = address + size;
  }
  return true;
}

bool take_pages(ByteReader& reader, std::uint64_t count, Collector& collector) {
  const auto base = reader.get<std::uint64_t>();
  const std::uint64_t size = reader.get_varint();
  if (!reader.ok() || size == 0 || size > kMaxPayloadBytes) return false;
  for (; count != 0; --count) {
    const std::uint64_t address = base + reader.get<std::uint32_t>() * size;
    if (!reader.ok() || !collector.add(address, size)) return false;
  }
  return true;
}

bool take_strided(ByteReader& reader, std::uint64_t count, Collector& collector) {
  const auto strided = StridedRanges::decode(reader, count);
  return strided && strided->for_each(count, [&](std::uint64_t address, std::uint64_t size) {
    return collector.add(address, size);
  });
}

bool take_encoded(ByteReader& reader, std::uint8_t encoding, std::uint64_t count, Collector& collector) {
  switch (static_cast<Encoding>(encoding)) {
    case Encoding::kList: return take_list(reader, count, collector);
    case Encoding::kPaged: return take_pages(reader, count, collector);
    case Encoding::kStrided: return take_strided(reader, count, collector);
  }
  return false;
}

}  // namespace

void collect_ranges(const Batch& batch, RangeList& list) {
  list.clear();
  const RemoteKey* last_key = nullptr;
  batch.for_each_piece([&](const Segment& piece) {
    if (piece.key == last_key) {
      RemoteRange& last = list.ranges.back();
      if (last.address + last.size == piece.remote) {
        last.size += piece.size;
        return;
      }
    } else {
      list.groups.push_back({piece.key->info().id, piece.key->info().key, 0});
      last_key = piece.key;
    }
    list.ranges.push_back({piece.remote, piece.size});
    ++list.groups.back().count;
  });
}

void encode_ranges(const RangeList& list, Bytes& out) {
  std::span<const RemoteRange> left = list.ranges;
  for (const RangeGroup& group : list.groups) {
    encode_group(group, left.first(group.count), out);
    left = left.subspan(group.count);
  }
}

Status decode_ranges(ByteView bytes, std::uint64_t total, RangeList& list) {
  list.clear();
  ByteReader reader(bytes);
  Collector collector(total, list.ranges);
  while (reader.ok() && reader.left() != 0) {
    RangeGroup group;
    group.region = static_cast<RegionId>(reader.get<std::uint32_t>());
    const ByteView key = reader.take(group.key.size());
    const auto encoding = reader.get<std::uint8_t>();
    const std::uint64_t count = reader.get_varint();
    if (!reader.ok() || count == 0 || count > kMaxRanges - list.ranges.size()) break;
    std::copy(key.begin(), key.end(), group.key.begin());
    group.count = static_cast<std::size_t>(count);

    if (!take_encoded(reader, encoding, count, collector)) break;
    list.groups.push_back(group);
    if (reader.left() == 0 && collector.complete()) return {};
  }
  if (reader.ok() && bytes.empty() && total == 0) return {};
  return fail(ErrorCode::kProtocol, "{} bytes of descriptors for {} bytes of payload make no sense",
              bytes.size(), total);
}

}  // namespace p2p::tcp
