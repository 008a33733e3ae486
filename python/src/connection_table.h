// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "gil.h"
#include "identity.h"
#include "p2p/connection.h"
#include "p2p/endpoint.h"
#include "p2p/result.h"

namespace p2p::python {

/// A connection and what its peer said of itself.
struct Link {
  enum class Origin { kDialled, kAccepted };

  std::uint64_t id = 0;
  Connection connection;
  Identity peer;
  Incarnation incarnation = 0;  ///< the peer's
  Origin origin = Origin::kDialled;
  mutable std::atomic<bool> claimed{false};  ///< given to a caller of accept()
};

/// The connections of an endpoint by small numbers, and the queues of accepted ones. Any thread; waits are
/// in slices so that the caller can look for signals.
class ConnectionTable {
 public:
  std::shared_ptr<const Link> add(Connection connection, Link::Origin origin);
  std::shared_ptr<const Link> find(std::uint64_t id) const;
  std::shared_ptr<const Link> remove(std::uint64_t id);

  /// The next accepted connection of this purpose, or kTimedOut if there is none, at the latest after a
  /// slice. Any number of threads may wait for either purpose.
  Result<std::shared_ptr<const Link>> accept(Endpoint& engine, Purpose purpose,
                                             std::chrono::nanoseconds slice);

  /// Connections made by add_remote_endpoint no longer wait for accept().
  void serve_passively();

  /// Where both sides connected to each other and neither accepted: of a connection made here, the one made
  /// by the peer, first with first and so on. Null if there is none, or a caller of accept() has it.
  std::shared_ptr<const Link> crossing(Endpoint& engine, const Link& mine);

  /// Waits, for a second at most, until what that peer has connected so far has opened here. Called with the
  /// GIL.
  void await_crossing(Endpoint& engine, const Link& mine);

  void clear();

 private:
  /// Ids of closed connections are kept for their reason, but not without bound.
  static constexpr std::size_t kPrune = 1024;

  using Queue = std::deque<std::shared_ptr<const Link>>;
  Queue::iterator first_for(Purpose purpose, const std::string& own_address);

  /// Takes what has come from the engine. With accept_mutex_: who looks for a connection finds it either
  /// there or here.
  Status sort_in(Endpoint& engine);
  bool knows_all_of(Endpoint& engine, Incarnation peer);

  mutable std::mutex mutex_;
  std::unordered_map<std::uint64_t, std::shared_ptr<const Link>> links_;
  std::size_t prune_at_ = kPrune;

  std::mutex accept_mutex_;
  bool passive_ = false;
  Queue accepted_;
};

}  // namespace p2p::python
