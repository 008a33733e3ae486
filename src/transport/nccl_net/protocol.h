// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "p2p/memory.h"
#include "p2p/nccl_net_options.h"
#include "p2p/result.h"

/// What the two channels tell each other over the ControlLink. The messages of the comms themselves carry
/// bytes only: who sends on a comm announces each message, in the order of the sends, with its length.
namespace p2p::nccl_net {

/// Bytes of one message of a comm at most. An UNPACK list of 2048 fragments describes so many where they are
/// pages of 4 KiB, and a half of that where they are half as large.
inline constexpr std::size_t kMaxChunkBytes = NcclNetOptions::kMostChunkBytes;
/// Pieces of one chunk or read at most; their descriptions fit into a control message.
inline constexpr std::size_t kMaxRanges = 1024;

/// A piece of a region of the message's receiver.
struct RegionRange {
  RegionId region{};
  RegionKey key{};
  std::uint64_t address = 0;
  std::uint64_t size = 0;
};

/// The next message of my send comm: part of a write of mine, or of the answer to a read of yours.
struct Chunk {
  std::uint64_t sequence = 0;  ///< of all chunks of this direction, from 0
  std::uint64_t batch = 0;
  bool response = false;
  bool last = false;  ///< of its batch
  std::uint64_t size = 0;
  std::vector<RegionRange> ranges;  ///< of a write: where it belongs; adds up to size
};

/// Send me these bytes.
struct ReadRequest {
  std::uint64_t batch = 0;
  std::vector<RegionRange> ranges;
};

/// A write of yours has landed, or why not; or why a read of yours ends early. All its chunks were announced.
struct Done {
  std::uint64_t batch = 0;
  bool response = false;
  Status status;
};

/// I want no more of my batch. Answered by Done.
struct Cancel {
  std::uint64_t batch = 0;
  bool response = false;  ///< it was a read
};

/// I live.
struct Ping {};

using Message = std::variant<Chunk, ReadRequest, Done, Cancel, Ping>;

Bytes encode(const Message& message);

/// kProtocol for bytes that `encode` could not have made, too many ranges, sums that do not agree.
Result<Message> decode(ByteView bytes);

/// First byte of a control message with messages in it; anything else is a CloseHandshake message.
inline constexpr std::byte kPackedMessages{1};

/// Appends the message to others that travel in one control message, behind the first byte.
void pack(Bytes& packed, const Message& message);

/// All messages of a control message, without its first byte. Nothing is kept of one that has something wrong
/// in it.
Result<std::vector<Message>> unpack(ByteView packed);

}  // namespace p2p::nccl_net
