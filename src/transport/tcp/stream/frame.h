// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "p2p/result.h"

/// Frames of a TCP data stream; byte tables in docs/wire.md, section "Data frames".
namespace p2p::tcp {

enum class FrameType : std::uint8_t {
  kWrite = 1,         ///< ranges, then the bytes for them
  kReadRequest = 2,   ///< ranges
  kReadResponse = 3,  ///< the bytes of a request's ranges
  kReadEnd = 4,       ///< a request's outcome, after its bytes if it had any
  kAck = 5,           ///< nothing but `acknowledged`
  kRefusal = 6,       ///< a write that did not land, and why
  kMessages = 7,      ///< a block of words, in place of descriptors
};

/// Bounds that both sides keep and check.
inline constexpr std::size_t kMaxRanges = 1024;
inline constexpr std::uint32_t kMaxDescriptorBytes = 64U << 10;
inline constexpr std::uint32_t kMaxPayloadBytes = 64U << 20;
inline constexpr std::size_t kMaxReasonBytes = 512;
inline constexpr std::uint64_t kMaxWrites = 64;  ///< sent and not acknowledged
inline constexpr std::uint64_t kMaxReads = 16;   ///< requested and not ended

/// Of one batch that goes to or from device memory, and writes of such, sent and not acknowledged: what the
/// slots of the other side hold.
inline constexpr std::uint64_t kStagedBytes = 1U << 20;
inline constexpr std::size_t kMaxStagedWrites = 16;

/// Goes before each frame: header, `descriptor_bytes` of descriptors or reason, `payload_bytes`.
struct FrameHeader {
  static constexpr std::size_t kBytes = 32;

  FrameType type = FrameType::kAck;
  std::uint16_t code = 0;  ///< base/wire_code.h
  std::uint32_t descriptor_bytes = 0;
  std::uint32_t payload_bytes = 0;
  std::uint32_t length = 0;        ///< of a read request: the bytes of its ranges
  std::uint64_t number = 0;        ///< of the write or the read, each counted from 1
  std::uint64_t acknowledged = 0;  ///< all of the peer's writes up to this have been dealt with

  void write_to(std::byte* out) const;

  /// kProtocol if the fields do not make sense together. `bytes` is kBytes long.
  static Result<FrameHeader> parse(ByteView bytes);
};

/// The error that a frame carries: `code` is not 0.
Error wire_error(std::uint16_t code, ByteView reason);

}  // namespace p2p::tcp
