// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "drivers/socket/local_socket.h"
#include "transport/cma/handshake.h"
#include "transport/cma/peer.h"
#include "transport/cma/rings.h"
#include "transport/cma/shared_slots.h"

namespace p2p::cma {

/// What two channels share once they have met.
struct Shared {
  Rings rings;
  SharedSlots slots;  ///< behind the rings, where the two are in different PID namespaces
};

/// How a channel finds its peer and proves itself to it: the acceptor listens, and takes the first of those
/// who connect that has the secret of the session.
class Meeting {
 public:
  /// `setup` and `peer`, which is filled here, outlive it.
  Meeting(const ChannelSetup& setup, socket::Place place, Peer& peer)
      : setup_(setup), place_(std::move(place)), peer_(peer) {}

  /// The acceptor listens from now on.
  Status begin();

  Bytes address() const { return address_.serialize(); }
  Status connect(ByteView peer_address);

  /// Nothing as long as the peer has not proven itself; an error ends it.
  Result<std::optional<Shared>> progress();

  /// Nobody is listened to any more.
  void end() {
    listener_.reset();
    strangers_.clear();
  }

 private:
  using Met = Result<std::optional<Shared>>;

  Met accept_strangers();
  Met receive_proof(UniqueFd& from);
  Result<Shared> take_peer(const MemoryProof& proof, UniqueFd rings);
  Result<Shared> share(UniqueFd descriptor);
  Status send_proof(const UniqueFd& rings) const;
  bool accepts() const { return setup_.role == Role::kAcceptor; }

  const ChannelSetup& setup_;
  const socket::Place place_;
  Peer& peer_;
  Address address_;
  Token listener_name_{};        ///< of whichever side listens
  bool takes_requests_ = false;  ///< the peer, as an acceptor knows
  socket::Listener listener_;
  std::vector<UniqueFd> strangers_;  ///< accepted, yet to prove themselves
  MemoryProof mine_;                 ///< the peer reads `token` here
};

}  // namespace p2p::cma
