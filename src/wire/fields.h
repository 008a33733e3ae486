// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <type_traits>

#include "wire/messages.h"

/// Every message's fields, once, in wire order. `walk` is called with all of them: the encoder appends them,
/// the decoder fills them in, tests draw them at random.
namespace p2p::wire {

template <class Self, class Type>
concept Is = std::same_as<std::remove_const_t<Self>, Type>;

void fields(Is<Hello> auto& m, auto&& walk) { walk(m.oldest, m.newest, m.incarnation, m.nonce, m.proof); }
void fields(Is<TransportStatus> auto& m, auto&& walk) { walk(m.name, m.reason); }
void fields(Is<Introduction> auto& m, auto&& walk) {
  walk(m.hellos, m.note, m.transports, m.eager_bytes, m.notifications, m.notification_bytes);
}
void fields(Is<EncryptionWish> auto& m, auto&& walk) { walk(m.encryption); }
void fields(Is<ChannelOffer> auto& m, auto&& walk) { walk(m.transport, m.addresses); }
void fields(Is<ChannelAnswer> auto& m, auto&& walk) { walk(m.transport, m.reason, m.addresses); }
void fields(Is<ChannelsReady> auto& m, auto&& walk) { walk(m.transport, m.reason); }
void fields(Is<ChannelControl> auto& m, auto&& walk) { walk(m.transport, m.channel, m.message); }
void fields(Is<ChannelReopen> auto& m, auto&& walk) { walk(m.transport, m.channel, m.address); }
void fields(Is<ChannelReopened> auto& m, auto&& walk) { walk(m.transport, m.channel, m.reason, m.address); }
void fields(Is<ChannelsRest> auto& m, auto&& walk) { walk(m.transport, m.channels); }
void fields(Is<ChannelsWanted> auto& m, auto&& walk) { walk(m.transport); }
void fields(Is<RegionQuery> auto& m, auto&& walk) { walk(m.query, m.region, m.key); }
void fields(Is<ExportedKey> auto& m, auto&& walk) { walk(m.transport, m.key); }
void fields(Is<RegionAnswer> auto& m, auto&& walk) {
  walk(m.query, m.error, m.message, m.base, m.size, m.keys);
}
void fields(Is<RegionRevoke> auto& m, auto&& walk) { walk(m.revocation, m.region); }
void fields(Is<RegionRevoked> auto& m, auto&& walk) { walk(m.revocation); }
void fields(Is<ReceiveSpan> auto& m, auto&& walk) {
  walk(m.region, m.key, m.kind, m.device, m.address, m.size);
}
void fields(Is<ReceivePosted> auto& m, auto&& walk) { walk(m.sequence, m.more, m.spans); }
void fields(Is<ReceiveDone> auto& m, auto&& walk) { walk(m.sequence, m.bytes, m.error, m.message); }
void fields(Is<ReceiveWithdrawn> auto& m, auto&& walk) { walk(m.sequence); }
void fields(Is<Notify> auto& m, auto&& walk) { walk(m.notification, m.total, m.offset, m.part); }
void fields(Is<NotifyDone> auto& m, auto&& walk) { walk(m.notification); }
void fields(Is<NotifyTaken> auto& m, auto&& walk) { walk(m.count, m.bytes); }
void fields(Is<Heartbeat> auto&, auto&& walk) { walk(); }
void fields(Is<Bye> auto& m, auto&& walk) { walk(m.reason); }
void fields(Is<MessageBlock> auto& m, auto&& walk) { walk(m.block); }
void fields(Is<EagerMessage> auto& m, auto&& walk) { walk(m.sequence, m.error, m.spans, m.bytes); }
void fields(Is<MessageAnswered> auto& m, auto&& walk) { walk(m.sequence, m.error, m.message); }
void fields(Is<MessageDeclined> auto& m, auto&& walk) { walk(m.sequence); }
void fields(Is<ReceiveWanted> auto& m, auto&& walk) { walk(m.sequence); }
void fields(Is<MessageWithdrawn> auto& m, auto&& walk) { walk(m.sequence); }
void fields(Is<SendsEnded> auto& m, auto&& walk) { walk(m.reason); }

void fields(Is<Resumable> auto& m, auto&& walk) { walk(m.token, m.boot, m.pid_namespace, m.pid, m.started); }
void fields(Is<CumulativeAck> auto& m, auto&& walk) { walk(m.messages); }
void fields(Is<Resume> auto& m, auto&& walk) { walk(m.token, m.attempt, m.nonce, m.proof); }
void fields(Is<ResumeAnswer> auto& m, auto&& walk) { walk(m.known, m.nonce); }
void fields(Is<Resumed> auto& m, auto&& walk) { walk(m.proof, m.messages); }
void fields(Is<AlternateAddresses::One> auto& m, auto&& walk) { walk(m.address, m.port); }
void fields(Is<AlternateAddresses> auto& m, auto&& walk) { walk(m.addresses); }

void fields(Is<DigestRegion> auto& m, auto&& walk) { walk(m.region, m.key); }
void fields(Is<DigestRun> auto& m, auto&& walk) { walk(m.region, m.ranges, m.size); }
void fields(Is<DigestQuery> auto& m, auto&& walk) { walk(m.query, m.regions, m.runs, m.addresses); }
void fields(Is<DigestAnswer> auto& m, auto&& walk) { walk(m.query, m.error, m.message, m.digest); }

/// A struct with a list of fields above.
template <class T>
concept Fielded = requires(T& value) { fields(value, [](auto&...) {}); };

/// A frame begins with the length of what follows (u32) and the type (u16), which is the message's place in
/// `Message`, counted from 1.
inline constexpr std::size_t kLengthBytes = 4;
inline constexpr std::size_t kTypeBytes = 2;

}  // namespace p2p::wire
