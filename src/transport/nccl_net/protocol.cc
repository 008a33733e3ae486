// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/nccl_net/protocol.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/peer_text.h"
#include "base/wire_code.h"

namespace p2p::nccl_net {
namespace {

bool same_region(const RegionRange& left, const RegionRange& right) {
  return left.region == right.region && left.key == right.key;
}

/// Neighbours in one region share its name: count, then id, key and the pieces.
void put_ranges(ByteWriter& writer, const std::vector<RegionRange>& ranges) {
  writer.put_varint(ranges.size());
  for (std::size_t at = 0; at < ranges.size();) {
    std::size_t end = at + 1;
    while (end < ranges.size() && same_region(ranges[at], ranges[end])) ++end;
    writer.put_varint(end - at);
    writer.put(static_cast<std::uint32_t>(ranges[at].region));
    writer.put(ByteView(ranges[at].key));
    for (; at < end; ++at) {
      writer.put(ranges[at].address);
      writer.put_varint(ranges[at].size);
    }
  }
}

/// Adds the sizes to `total`; false if anything is wrong.
bool get_ranges(ByteReader& reader, std::vector<RegionRange>& ranges, std::uint64_t& total) {
  const std::uint64_t count = reader.get_varint();
  if (!reader.ok() || count > kMaxRanges) return false;
  ranges.reserve(count);
  while (ranges.size() < count) {
    const std::uint64_t run = reader.get_varint();
    RegionRange range;
    range.region = RegionId{reader.get<std::uint32_t>()};
    std::ranges::copy(reader.take(range.key.size()), range.key.begin());
    if (!reader.ok() || run == 0 || run > count - ranges.size()) return false;
    for (std::uint64_t index = 0; index < run; ++index) {
      range.address = reader.get<std::uint64_t>();
      range.size = reader.get_varint();
      if (!reader.ok() || range.size > std::numeric_limits<std::uint64_t>::max() - total) return false;
      total += range.size;
      ranges.push_back(range);
    }
  }
  return true;
}

struct Encoder {
  ByteWriter& writer;

  void flags(bool response, bool last) const {
    writer.put(static_cast<std::uint8_t>((response ? 1 : 0) | (last ? 2 : 0)));
  }

  void operator()(const Chunk& chunk) const {
    writer.put(chunk.sequence);
    writer.put(chunk.batch);
    flags(chunk.response, chunk.last);
    writer.put(chunk.size);
    put_ranges(writer, chunk.ranges);
  }
  void operator()(const ReadRequest& read) const {
    writer.put(read.batch);
    put_ranges(writer, read.ranges);
  }
  void operator()(const Done& done) const {
    writer.put(done.batch);
    flags(done.response, false);
    writer.put(wire_code(done.status));
    if (!done.status) {
      writer.put(as_bytes(PeerText(done.status.error().message)));
    }
  }
  void operator()(const Cancel& cancel) const {
    writer.put(cancel.batch);
    flags(cancel.response, false);
  }
  void operator()(const Ping&) const {}
};

bool get_chunk(ByteReader& reader, Chunk& chunk) {
  chunk.sequence = reader.get<std::uint64_t>();
  chunk.batch = reader.get<std::uint64_t>();
  const auto flags = reader.get<std::uint8_t>();
  chunk.response = (flags & 1) != 0;
  chunk.last = (flags & 2) != 0;
  chunk.size = reader.get<std::uint64_t>();
  std::uint64_t total = 0;
  if (flags > 3 || !get_ranges(reader, chunk.ranges, total) || chunk.size > kMaxChunkBytes) return false;
  return chunk.response ? chunk.ranges.empty() : total == chunk.size;
}

bool get_done(ByteReader& reader, Done& done) {
  done.batch = reader.get<std::uint64_t>();
  const auto flags = reader.get<std::uint8_t>();
  done.response = (flags & 1) != 0;
  const auto code = reader.get<std::uint16_t>();
  if (!reader.ok() || flags > 1 || !is_wire_code(code)) return false;
  const PeerText message(reader.take(reader.left()));
  if (code != 0) done.status = tl::unexpected(Error{code_from_wire(code), message});
  return code != 0 || message.empty();
}

template <class T, class Get>
Result<Message> get(ByteReader& reader, Get&& get_fields) {
  T message;
  if (!get_fields(message) || !reader.ok() || reader.left() != 0) {
    return fail(ErrorCode::kProtocol, "a control message of a net plugin channel that makes no sense");
  }
  return Message(std::move(message));
}

}  // namespace

Bytes encode(const Message& message) {
  Bytes bytes;
  ByteWriter writer(bytes);
  writer.put(static_cast<std::uint8_t>(message.index()));
  std::visit(Encoder{writer}, message);
  return bytes;
}

Result<Message> decode(ByteView bytes) {
  ByteReader reader(bytes);
  switch (reader.get<std::uint8_t>()) {
    case 0:
      if (!reader.ok()) break;
      return get<Chunk>(reader, [&](Chunk& chunk) { return get_chunk(reader, chunk); });
    case 1:
      return get<ReadRequest>(reader, [&](ReadRequest& read) {
        read.batch = reader.get<std::uint64_t>();
        std::uint64_t total = 0;
        return get_ranges(reader, read.ranges, total);
      });
    case 2: return get<Done>(reader, [&](Done& done) { return get_done(reader, done); });
    case 3:
      return get<Cancel>(reader, [&](Cancel& cancel) {
        cancel.batch = reader.get<std::uint64_t>();
        const auto flags = reader.get<std::uint8_t>();
        cancel.response = flags == 1;
        return flags <= 1;
      });
    case 4: return get<Ping>(reader, [](Ping&) { return true; });
    default: break;
  }
  return fail(ErrorCode::kProtocol, "an unknown control message of {} bytes", bytes.size());
}

void pack(Bytes& packed, const Message& message) {
  ByteWriter writer(packed);
  const std::size_t start = packed.size();
  writer.put(std::uint32_t{0});
  writer.put(static_cast<std::uint8_t>(message.index()));
  std::visit(Encoder{writer}, message);
  const auto size = static_cast<std::uint32_t>(packed.size() - start - sizeof(std::uint32_t));
  std::memcpy(&packed[start], &size, sizeof size);
}

Result<std::vector<Message>> unpack(ByteView packed) {
  ByteReader reader(packed);
  std::vector<Message> messages;
  while (reader.left() != 0) {
    const ByteView bytes = reader.take(reader.get<std::uint32_t>());
    if (!reader.ok()) {
      return fail(ErrorCode::kProtocol, "a control message of {} bytes that ends within a message",
                  packed.size());
    }
    auto message = decode(bytes);
    if (!message) return tl::unexpected(message.error());
    messages.push_back(std::move(*message));
  }
  return messages;
}

}  // namespace p2p::nccl_net
