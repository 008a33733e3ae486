// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "base/peer_text.h"
#include "p2p/memory.h"

/// Messages about receives and notifications. They come in blocks, over a channel that carries messages or in
/// `MessageBlock` over the session: src/engine/messaging/message_stream.h.
namespace p2p::wire {

struct ReceiveSpan {
  std::uint32_t region = 0;
  RegionKey key{};
  std::uint8_t kind = 0;  ///< MemoryKind
  std::int32_t device = -1;
  std::uint64_t address = 0;
  std::uint64_t size = 0;
  friend bool operator==(const ReceiveSpan&, const ReceiveSpan&) = default;
};

/// My receive number `sequence` (from 0) is ready, for a message that is written. A long list comes in
/// several messages; `more` marks all but the last.
struct ReceivePosted {
  std::uint64_t sequence = 0;
  std::uint8_t more = 0;
  std::vector<ReceiveSpan> spans;
  friend bool operator==(const ReceivePosted&, const ReceivePosted&) = default;
};

/// The sender is through with receive `sequence`, which was posted: its bytes are there, or why they are not.
struct ReceiveDone {
  std::uint64_t sequence = 0;
  std::uint64_t bytes = 0;
  std::uint16_t error = 0;  ///< 0, or 1 + the ErrorCode
  PeerText message;
  friend bool operator==(const ReceiveDone&, const ReceiveDone&) = default;
};

/// The receiver gives receive `sequence`, which was posted, up; answered by its ReceiveDone, unless the
/// message came eagerly.
struct ReceiveWithdrawn {
  std::uint64_t sequence = 0;
  friend bool operator==(const ReceiveWithdrawn&, const ReceiveWithdrawn&) = default;
};

/// A part of a notification. Pieces of one come in order and are not mixed with another's.
struct Notify {
  std::uint64_t notification = 0;
  std::uint64_t total = 0;  ///< bytes of the whole
  std::uint64_t offset = 0;
  Bytes part;
  friend bool operator==(const Notify&, const Notify&) = default;
};

/// All up to this one have come.
struct NotifyDone {
  std::uint64_t notification = 0;
  friend bool operator==(const NotifyDone&, const NotifyDone&) = default;
};

/// So many notifications, with so many bytes in all, the application has taken since the session began.
struct NotifyTaken {
  std::uint64_t count = 0;
  std::uint64_t bytes = 0;
  friend bool operator==(const NotifyTaken&, const NotifyTaken&) = default;
};

/// Message number `sequence` itself, sent before anybody asked where to; or, with an error, that it will not
/// come. Its numbers grow.
struct EagerMessage {
  std::uint64_t sequence = 0;
  std::uint16_t error = 0;           ///< 0, or 1 + the ErrorCode
  std::vector<std::uint32_t> spans;  ///< their bytes, if there are several
  Bytes bytes;                       ///< with an error why, if there was room for it
  friend bool operator==(const EagerMessage&, const EagerMessage&) = default;
};

/// Without an error: all eager messages up to this one that were not answered yet have met their receives.
/// With one: this message failed.
struct MessageAnswered {
  std::uint64_t sequence = 0;
  std::uint16_t error = 0;  ///< 0, or 1 + the ErrorCode
  PeerText message;
  friend bool operator==(const MessageAnswered&, const MessageAnswered&) = default;
};

/// An eager message met a receive in device memory, which is posted: it is to be written there.
struct MessageDeclined {
  std::uint64_t sequence = 0;
  friend bool operator==(const MessageDeclined&, const MessageDeclined&) = default;
};

/// Message `sequence` is to be written: post its receive.
struct ReceiveWanted {
  std::uint64_t sequence = 0;
  friend bool operator==(const ReceiveWanted&, const ReceiveWanted&) = default;
};

/// A sender of eager message `sequence` gives it up, if it has not met its receive; answered either way.
struct MessageWithdrawn {
  std::uint64_t sequence = 0;
  friend bool operator==(const MessageWithdrawn&, const MessageWithdrawn&) = default;
};

/// I send nothing more: receives that were not answered before this will not be.
struct SendsEnded {
  PeerText reason;
  friend bool operator==(const SendsEnded&, const SendsEnded&) = default;
};

}  // namespace p2p::wire
