// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/stream/frame.h"

#include <cstring>

#include "base/error.h"
#include "base/peer_text.h"
#include "base/wire_code.h"
#include "transport/transport.h"

namespace p2p::tcp {
namespace {

bool consistent(const FrameHeader& header) {
  const bool no_payload = header.payload_bytes == 0;
  const bool bare = no_payload && header.length == 0;
  const bool has_ranges = header.descriptor_bytes != 0;
  switch (header.type) {
    case FrameType::kWrite:
      return header.code == 0 && header.length == 0 && header.number != 0 && has_ranges == !no_payload;
    case FrameType::kReadRequest:
      return header.code == 0 && no_payload && header.number != 0 && has_ranges == (header.length != 0);
    case FrameType::kReadResponse:
      return header.code == 0 && !no_payload && header.length == 0 && header.number != 0 && !has_ranges;
    case FrameType::kReadEnd:
      return bare && header.number != 0 && header.descriptor_bytes <= kMaxReasonBytes &&
             (header.code != 0 || !has_ranges);
    case FrameType::kAck: return bare && header.code == 0 && header.number == 0 && !has_ranges;
    case FrameType::kRefusal:
      return bare && header.code != 0 && header.number != 0 && header.descriptor_bytes <= kMaxReasonBytes;
    case FrameType::kMessages:
      return bare && header.code == 0 && header.number == 0 && has_ranges &&
             header.descriptor_bytes <= kMaxMessageBlockBytes;
  }
  return false;
}

}  // namespace

void FrameHeader::write_to(std::byte* out) const {
  const auto put = [&out](auto value) {
    std::memcpy(out, &value, sizeof value);
    out += sizeof value;
  };
  put(type);
  put(std::uint8_t{0});
  put(code);
  put(descriptor_bytes);
  put(payload_bytes);
  put(length);
  put(number);
  put(acknowledged);
}

Result<FrameHeader> FrameHeader::parse(ByteView bytes) {
  ByteReader reader(bytes);
  FrameHeader header;
  header.type = static_cast<FrameType>(reader.get<std::uint8_t>());
  const auto zero = reader.get<std::uint8_t>();
  header.code = reader.get<std::uint16_t>();
  header.descriptor_bytes = reader.get<std::uint32_t>();
  header.payload_bytes = reader.get<std::uint32_t>();
  header.length = reader.get<std::uint32_t>();
  header.number = reader.get<std::uint64_t>();
  header.acknowledged = reader.get<std::uint64_t>();
  const bool valid = reader.ok() && zero == 0 && is_wire_code(header.code) &&
                     header.descriptor_bytes <= kMaxDescriptorBytes &&
                     header.payload_bytes <= kMaxPayloadBytes && header.length <= kMaxPayloadBytes &&
                     consistent(header);
  if (valid) return header;
  return fail(
      ErrorCode::kProtocol,
      "frame header of type {} with code {}, {} descriptor bytes, {} payload bytes, length {}, number "
      "{} is not allowed",
      static_cast<unsigned>(header.type), header.code, header.descriptor_bytes, header.payload_bytes,
      header.length, header.number);
}

Error wire_error(std::uint16_t code, ByteView reason) {
  ErrorCode known = code_from_wire(code);
  // That one means that the stream is lost, which no frame on it can say.
  if (known == ErrorCode::kPeerGone) known = ErrorCode::kProtocol;
  return {known, fmt::format("the peer refused: {}", PeerText(reason))};
}

}  // namespace p2p::tcp
