// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "conn_info.h"
#include "p2p/endpoint.h"

namespace p2p::nixl {

/// A remote agent and the connection to it. A connection that is lost is dialled again at once, so that a
/// moment later it is known whether the peer lives. One that does not answer then is away: work on it fails,
/// and the next post dials anew. Only the proof that the process has ended is final: its host refuses the
/// port, or another process answers there. Only `settle` blocks. Thread-safe; shared by the backend, its
/// requests and the metadata of the peer's memory. It does not touch the endpoint after `leave`, which comes
/// before the endpoint's end.
class Peer : public std::enable_shared_from_this<Peer> {
 public:
  /// A connection, and which one of this peer's it is (from 1).
  struct Link {
    Connection connection;
    std::uint32_t number = 0;
  };

  struct Timing {
    std::chrono::milliseconds connect{10000};
    std::chrono::milliseconds keepalive{3000};
  };

  Peer(Endpoint& endpoint, std::string agent, ConnInfo info, Timing timing)
      : endpoint_(endpoint), agent_(std::move(agent)), info_(std::move(info)), timing_(timing) {}

  const std::string& agent() const { return agent_; }
  const ConnInfo& info() const { return info_; }

  /// For new work, which waits where the connection is not open yet. Dials where no dial is under way.
  /// kPeerGone for a peer that has ended, and for a lost one that has not answered for a moment.
  Result<Link> link();

  /// kPeerGone also while a lost connection is dialled again: what is sent now may never arrive.
  Status notify(std::string_view message);

  /// Work on this link ended as if the peer were gone. Whether it is will be known when `in_doubt` says no.
  void suspect(std::uint32_t number);
  bool in_doubt();

  /// Work that waits for this link has waited too long for a lost peer to answer.
  bool hopeless(std::uint32_t number);

  /// Waits for the first connection if notifications wait for it.
  void settle(std::chrono::nanoseconds timeout);

  /// The agent dropped the peer: closes the connection.
  void leave();

 private:
  enum class State {
    kIdle,        // not dialled yet
    kConnecting,  // for the first time
    kOpen,
    kLost,   // dialled again
    kAway,   // did not answer; the next work dials
    kEnded,  // the process has; for good
    kLeft,
  };
  using Clock = std::chrono::steady_clock;
  class Turn;

  // With the mutex held:
  void take_changes();
  void dial(State as);
  void opened();
  void dial_again();
  void dial_if_due();
  void closed(const Error& error);
  void give_up(State as, const std::string& why);
  bool fresh_loss() const;
  tl::unexpected<Error> gone() const;

  Endpoint& endpoint_;
  const std::string agent_;
  const ConnInfo info_;
  const Timing timing_;

  std::mutex mutex_;
  State state_ = State::kIdle;
  Connection connection_;
  std::uint32_t number_ = 0;
  bool again_ = false;         // connection_ was made after a loss
  bool said_goodbye_ = false;  // of the last connection that was open
  Clock::time_point opened_at_;
  Clock::time_point lost_at_;
  std::string why_;                      // it is away or has ended
  std::vector<std::string> waiting_;     // notifications for the first connection
  std::optional<Connection> discarded_;  // to be closed once the mutex is free
};

}  // namespace p2p::nixl
