// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/bytes.h"
#include "base/peer_text.h"
#include "p2p/memory.h"
#include "wire/digests.h"
#include "wire/message_block.h"
#include "wire/resumption.h"
#include "wire/versions.h"

/// What crosses a control connection: a closed set of messages. fields.h lists each struct's fields once, in
/// wire order, and the codec walks that list both ways (encode.cc, decode.cc; byte tables in docs/wire.md).
namespace p2p::wire {

/// Longest frame either side accepts, its header included. Longer things are sent in pieces.
inline constexpr std::size_t kMaxFrameBytes = std::size_t{1} << 20;

/// Longest frame taken from a peer that has not proven itself.
inline constexpr std::size_t kStrangerFrameBytes = 1024;

using Nonce = std::array<std::byte, 24>;
using Digest = std::array<std::byte, 32>;

/// How a side proves itself.
enum class Proof : std::uint8_t { kNone, kKey, kCertificate };

/// First from both sides. Tells nothing that a stranger must not know. It has these fields in all versions,
/// so that two sides that have none in common can still say so.
struct Hello {
  std::uint16_t oldest = kVersions.oldest;
  std::uint16_t newest = kVersions.newest;
  std::uint64_t incarnation = 0;
  Nonce nonce{};
  std::uint8_t proof = 0;  ///< a Proof; with any but kNone TLS follows the hellos

  Versions versions() const { return {oldest, newest}; }
  friend bool operator==(const Hello&, const Hello&) = default;
};

struct TransportStatus {
  PeerText name;
  PeerText reason;  ///< why it cannot be used; empty: it can
  friend bool operator==(const TransportStatus&, const TransportStatus&) = default;
};

/// After the hellos, and within TLS where sides prove themselves, from both.
struct Introduction {
  Digest hellos{};   ///< what this side said and heard before
  std::string note;  ///< bytes of the application's; all texts are PeerText
  std::vector<TransportStatus> transports;
  std::uint32_t eager_bytes = 0;  ///< kept here of messages whose receives are not posted yet

  // Kept here of notifications that the application has not taken; one has half as many bytes at most.
  std::uint32_t notifications = 1024;
  std::uint64_t notification_bytes = std::uint64_t{1} << 20;
  friend bool operator==(const Introduction&, const Introduction&) = default;
};

/// Ahead of the introduction, within TLS, from those that wish data to be encrypted.
struct EncryptionWish {
  std::uint8_t encryption = 0;  ///< an Encryption
  friend bool operator==(const EncryptionWish&, const EncryptionWish&) = default;
};

/// Connector: my channels of one transport, in order. One offer for each transport that both can use.
struct ChannelOffer {
  PeerText transport;
  std::vector<Bytes> addresses;
  friend bool operator==(const ChannelOffer&, const ChannelOffer&) = default;
};

/// Acceptor: as many of mine, or why not.
struct ChannelAnswer {
  PeerText transport;
  PeerText reason;  ///< empty: accepted
  std::vector<Bytes> addresses;
  friend bool operator==(const ChannelAnswer&, const ChannelAnswer&) = default;
};

/// From both sides, once an offered transport's channels are all ready here, or one failed. A second one,
/// with a reason, says that they are lost for good.
struct ChannelsReady {
  PeerText transport;
  PeerText reason;  ///< empty: ready
  friend bool operator==(const ChannelsReady&, const ChannelsReady&) = default;
};

/// Connector: a new channel in the place of one that was lost. The number is the place, plus 64 for each
/// channel that was there before.
struct ChannelReopen {
  PeerText transport;
  std::uint32_t channel = 0;
  Bytes address;
  friend bool operator==(const ChannelReopen&, const ChannelReopen&) = default;
};

/// Acceptor: its twin, or why not.
struct ChannelReopened {
  PeerText transport;
  std::uint32_t channel = 0;
  PeerText reason;  ///< empty: accepted
  Bytes address;
  friend bool operator==(const ChannelReopened&, const ChannelReopened&) = default;
};

/// Connector: its channels are closed, since nothing uses them, until either side has a use for them; or the
/// surplus ones that it names, which added nothing. Acceptor: it has none, and they may be closed.
struct ChannelsRest {
  PeerText transport;
  std::vector<std::uint32_t> channels{};  ///< empty: all
  friend bool operator==(const ChannelsRest&, const ChannelsRest&) = default;
};

/// Acceptor: it has a use for idle channels that are closed, or for more of them.
struct ChannelsWanted {
  PeerText transport;
  friend bool operator==(const ChannelsWanted&, const ChannelsWanted&) = default;
};

/// Bytes of a ControlLink.
struct ChannelControl {
  PeerText transport;
  std::uint32_t channel = 0;
  Bytes message;
  friend bool operator==(const ChannelControl&, const ChannelControl&) = default;
};

/// Asks the owner for what transports need to reach a region.
struct RegionQuery {
  std::uint64_t query = 0;
  std::uint32_t region = 0;
  RegionKey key{};
  friend bool operator==(const RegionQuery&, const RegionQuery&) = default;
};

struct ExportedKey {
  PeerText transport;
  Bytes key;
  friend bool operator==(const ExportedKey&, const ExportedKey&) = default;
};

struct RegionAnswer {
  std::uint64_t query = 0;
  std::uint16_t error = 0;  ///< 0, or 1 + the ErrorCode
  PeerText message;
  std::uint64_t base = 0;
  std::uint64_t size = 0;
  std::vector<ExportedKey> keys;
  friend bool operator==(const RegionAnswer&, const RegionAnswer&) = default;
};

/// The region is gone: use it no more, and say when nothing of yours is on its way to it.
struct RegionRevoke {
  std::uint64_t revocation = 0;
  std::uint32_t region = 0;
  friend bool operator==(const RegionRevoke&, const RegionRevoke&) = default;
};

struct RegionRevoked {
  std::uint64_t revocation = 0;
  friend bool operator==(const RegionRevoked&, const RegionRevoked&) = default;
};

/// Says that this side lives.
struct Heartbeat {
  friend bool operator==(const Heartbeat&, const Heartbeat&) = default;
};

/// I start nothing more. The connection closes when both have said so.
struct Bye {
  PeerText reason;
  friend bool operator==(const Bye&, const Bye&) = default;
};

/// A run of the messages below and of those about receives and notifications, one after the other as frames,
/// as they go over a channel where one carries them: src/engine/messaging/message_stream.h.
struct MessageBlock {
  Bytes block;
  friend bool operator==(const MessageBlock&, const MessageBlock&) = default;
};

using Message =
    std::variant<Hello, Introduction, ChannelOffer, ChannelAnswer, ChannelsReady, ChannelControl, RegionQuery,
                 RegionAnswer, RegionRevoke, RegionRevoked, ReceivePosted, ReceiveDone, ReceiveWithdrawn,
                 Notify, NotifyDone, Heartbeat, Bye, MessageBlock, EagerMessage, MessageAnswered,
                 MessageDeclined, ReceiveWanted, MessageWithdrawn, SendsEnded, ChannelReopen, ChannelReopened,
                 NotifyTaken, ChannelsRest, ChannelsWanted, EncryptionWish, Resumable, CumulativeAck, Resume,
                 ResumeAnswer, Resumed, AlternateAddresses, DigestQuery, DigestAnswer>;

}  // namespace p2p::wire
