// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/unique_fd.h"
#include "drivers/socket/poll_set.h"
#include "p2p/result.h"
#include "transport/tcp/connect/handshake.h"

namespace p2p::tcp {

/// The dialling side of a channel.
class Connector {
 public:
  static Result<Connector> dial(const socket::Address& local, const ChannelAddress& peer,
                                const Secret& secret, socket::PollSet& polls);

  /// As of Acceptor. kPermissionDenied if the other side does not know the secret.
  Result<UniqueFd> advance();

  /// Once there is a socket, as of Acceptor.
  const crypto::Digest& key() const { return key_; }

 private:
  Connector(const ChannelAddress& peer, const Secret& secret, socket::PollSet& polls);

  socket::Address peer_;
  Secret secret_;
  socket::PollSet* polls_;
  UniqueFd fd_;
  Greeting greeting_;
  MessageReader answer_;
  crypto::Digest key_{};
  bool connected_ = false;
};

}  // namespace p2p::tcp
