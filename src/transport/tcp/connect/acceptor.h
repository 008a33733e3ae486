// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "base/unique_fd.h"
#include "drivers/socket/poll_set.h"
#include "p2p/result.h"
#include "transport/tcp/connect/arrivals.h"
#include "transport/tcp/connect/handshake.h"

namespace p2p::tcp {

/// The side of a channel that is dialled. Strangers cost it nothing but a bounded number of descriptors for a
/// bounded time.
class Acceptor {
 public:
  /// At the endpoint's port, which the peer reaches at `address`; none: where it reached it for the session.
  static Result<Acceptor> await(std::shared_ptr<StreamPort> port, const socket::Address& address,
                                const Secret& secret, socket::PollSet& polls);

  /// At a port of its own.
  static Result<Acceptor> listen(const socket::Address& address, const Secret& secret,
                                 socket::PollSet& polls);

  const ChannelAddress& address() const { return address_; }

  /// Moves on what can be moved. The peer's socket, out of the poll set, once one has proven itself;
  /// listening ends with that. No descriptor before.
  Result<UniqueFd> advance();

  /// Once there is a socket: of its stream alone.
  const crypto::Digest& key() const { return key_; }

  /// Strangers hang on, or a pause lasts, at most until here; call `advance` then.
  Clock::time_point next_deadline() const;

 private:
  struct Pending {
    UniqueFd fd;
    Clock::time_point deadline;
    MessageReader message;
    bool knows_token = false;
    Greeting greeting{};
    Nonce nonce{};  // mine
  };

  explicit Acceptor(const Secret& secret, socket::PollSet& polls) : secret_(secret), polls_(&polls) {}
  Status draw_token();
  Status take_waiting();
  void take_in(UniqueFd fd);
  bool make_room();
  Result<bool> advance(Pending& pending);
  Status answer(Pending& pending);

  Secret secret_;
  socket::PollSet* polls_;
  std::unique_ptr<Arrivals> arrivals_;  // one of them
  UniqueFd listener_;
  Clock::time_point paused_until_ = Clock::time_point::min();
  ChannelAddress address_;
  std::vector<Pending> pending_;
  crypto::Digest key_{};
};

}  // namespace p2p::tcp
