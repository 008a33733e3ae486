// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "p2p/memory.h"
#include "p2p/result.h"
#include "transport/batch.h"

/// What two channels say to each other where the owner of host memory moves the bytes: it copies between its
/// memory and a slot of the side that asks. Byte table in docs/wire.md, section "Copies by the owner".
namespace p2p::cma {

/// Bytes of one batch, and of a pinned slot: long enough to make the system call cheap, short enough that
/// workers share a transfer evenly.
inline constexpr std::uint64_t kMaxBatchBytes = std::uint64_t{1} << 20;
inline constexpr std::size_t kMaxBatchSegments = 1024;

/// Asks the owner to copy one batch, whose bytes lie back to back in the slot.
struct CopyRequest {
  struct Region {
    RegionId id{};
    RegionKey key{};
  };
  struct Piece {
    std::uint64_t address = 0;  ///< in the owner's process
    std::uint32_t size = 0;
    std::uint32_t region = 0;  ///< which one of `regions` it lies in
  };
  std::uint64_t batch = 0;  ///< the sender's number
  Operation operation = Operation::kWrite;
  std::uint64_t slot = 0;  ///< address in the sender's process
  std::vector<Region> regions;
  std::vector<Piece> pieces;

  /// Of a batch whose bytes go through the sender's slot.
  static CopyRequest of(const Batch& batch, const std::byte* slot);
};

/// How such a batch ended: nothing is copied for it any more.
struct CopyOutcome {
  std::uint64_t batch = 0;
  Status status;
};

using ChannelMessage = std::variant<CopyRequest, CopyOutcome>;
Bytes encode(const ChannelMessage& message);

/// kProtocol unless the bytes are what `encode` made of a request that `CopyRequest::of` makes, or of an
/// outcome.
Result<ChannelMessage> decode_message(ByteView bytes);

}  // namespace p2p::cma
