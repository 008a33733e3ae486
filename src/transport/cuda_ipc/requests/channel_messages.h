// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <variant>

#include "base/bytes.h"
#include "p2p/memory.h"
#include "p2p/result.h"
#include "transport/copy_request.h"
#include "transport/cuda_ipc/memory/key.h"

/// What two channels say to each other besides requests for copies and their outcomes: whether they have met,
/// and which memory requests may name.
namespace p2p::cuda_ipc {

/// The connector's first message, where both have a TwinAddress: the link is up, or the system forbids it.
struct TwinMet {
  bool linked = false;
};

/// A region of the sender's, which its next requests name.
struct RegionOffer {
  RegionId region{};
  std::uint64_t base = 0;
  std::uint64_t size = 0;
  Bytes exported;  ///< what Registration::export_key gave
};

/// The sender takes a region back that it offered.
struct RegionWithdrawn {
  RegionId region{};
};

/// The sender has been lent a ring by the receiver's process, and what it asks for may name it as `region`.
struct RingOffer {
  RegionId region{};
  std::uint64_t ring = 0;
  Token token{};
  bool has_words = false;  ///< the sender asks by the words of the ring from now on
  std::uint8_t words = 0;  ///< which pair of them
};

/// Wakes the receiver: words have come.
struct Look {};

using ChannelMessage =
    std::variant<RegionOffer, RegionWithdrawn, CopyRequest, CopyOutcome, RingOffer, Look, TwinMet>;
Bytes encode(const ChannelMessage& message);

/// kProtocol unless the bytes are what `encode` made.
Result<ChannelMessage> decode_message(ByteView bytes);

}  // namespace p2p::cuda_ipc
