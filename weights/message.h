// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "p2p/host_port.h"
#include "p2p/memory.h"
#include "p2p/result.h"

namespace p2p::weights {

/// Names what a class of subscribers receives: all who want the same of one publication of a version.
struct Key {
  std::uint64_t version = 0;
  std::uint64_t publication = 0;  ///< drawn by the publisher: tells two publishers of one version apart
  std::uint64_t demand = 0;       ///< digest of what is wanted; 0 where the publication is meant
  auto operator<=>(const Key&) const = default;

  /// Of all its classes.
  Key whole() const { return {version, publication, 0}; }
  bool same_publication(const Key& other) const { return whole() == other.whole(); }
};

/// Who takes part, and where it listens. `id` is the incarnation of its endpoint, proven by the handshake.
struct Member {
  std::uint64_t id = 0;
  std::string address;
  std::uint16_t port = 0;
  std::uint32_t order = 0;  ///< in the chain of its class; the publisher is 0

  std::string place() const { return HostPort{address, port}.text(); }
};

/// What a chunk's bytes must hash to.
struct ChunkDigest {
  std::uint32_t chunk = 0;
  std::uint64_t digest = 0;
};

/// A table of the sender. A short one is said; a longer one is read from its memory.
struct TableAt {
  RegionDescriptor memory;
  std::string bytes;  ///< all of it; empty: it is to be read
};

/// The most bytes of a table that is said.
inline constexpr std::size_t kMostSaid = std::size_t{128} << 10;

// The messages, each a notification.
struct Offer {  ///< to everybody: this version can be asked for here
  Key key;
  Key base;  ///< the publication that its deltas are based on; 0 throughout: it has none
};
struct Withdraw {  ///< it cannot any more; with a demand: that class alone
  Key key;
};
struct Join {  ///< to whoever offers: who else receives this?
  Key key;
  TableAt demand;
};
struct Refuse {  ///< the answer to a Join that cannot be met
  Key key;
  std::string why;
};
struct Tell {  ///< of a member of the class; also of the receiver itself, and of the sender, who follows
               ///< unasked
  Key key;
  Member member;
};
struct Follow {  ///< to a holder: tell what of the class you have, from now on
  Key key;
};
struct Layout {  ///< the answer: where it lies
  Key key;
  TableAt table;
  bool deltas = false;  ///< it gives deltas, too
};
struct Delta {  ///< of a chunk of which a `Have` follows
  Key key;
  std::uint32_t chunk = 0;
  RegionDescriptor memory;
  std::uint64_t address = 0;  ///< in that memory
  std::uint32_t bytes = 0;
};
struct Have {  ///< then, whenever more has come
  Key key;
  std::vector<ChunkDigest> chunks;
};
struct Done {  ///< to everybody; the publisher counts it: all has come
  Key key;
};
struct Took {  ///< to a holder, which counts it: bytes have been read there
  Key key;
  std::uint64_t bytes = 0;
};

using Message = std::variant<Offer, Withdraw, Join, Refuse, Tell, Follow, Layout, Delta, Have, Done, Took>;

/// The most chunks in one message.
inline constexpr std::size_t kMostChunksTold = 2048;

std::string encode(const Message& message);

/// What says the same in shorter messages, to a peer that has little room for them: a table is to be read, a
/// long list comes in halves. Nothing: it is as short as can be.
std::vector<Message> shortened(const Message& message);

/// kProtocol for what `encode` cannot have made.
Result<Message> decode(std::string_view bytes);

/// What a member says of itself in each handshake.
std::string encode_note(const std::string& address, std::uint16_t port);
std::optional<std::pair<std::string, std::uint16_t>> decode_note(std::string_view note);
/// Of a note that cannot be decoded: what its sender is.
std::string why_refused(std::string_view note);

}  // namespace p2p::weights
