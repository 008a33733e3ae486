// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "convert/identity.h"
#include "gil.h"
#include "p2p/connection.h"
#include "p2p/endpoint.h"
#include "p2p/result.h"

namespace p2p::python {

/// A connection and what its peer said of itself.
struct Link {
  enum class Origin { kDialled, kAccepted };

  std::uint64_t id = 0;
  std::uint64_t number = 0;  ///< as the side that made it counts
  Connection connection;
  Identity peer;
  Incarnation incarnation = 0;  ///< the peer's
  Origin origin = Origin::kDialled;
  std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
  mutable std::shared_ptr<const Link> partner;  ///< that crosses it, once it is known; guarded by the table
};

/// The connections of an endpoint by small numbers, and the queues of accepted ones. Any thread; waits are
/// in slices so that the caller can look for signals.
class ConnectionTable {
 public:
  /// `number`: of one that was made here.
  std::shared_ptr<const Link> add(Connection connection, Link::Origin origin, std::uint64_t number = 0);

  /// For a connection that is to be made here.
  std::uint64_t next_number() { return made_.fetch_add(1) + 1; }

  std::shared_ptr<const Link> find(std::uint64_t id) const;
  std::shared_ptr<const Link> remove(std::uint64_t id);

  /// The next accepted connection of this purpose, or kTimedOut if there is none, at the latest after a
  /// slice. Any number of threads may wait for either purpose.
  Result<std::shared_ptr<const Link>> accept(Endpoint& engine, Purpose purpose,
                                             std::chrono::nanoseconds slice);

  /// Connections made by add_remote_endpoint no longer wait for accept().
  void serve_passively();

  /// Where both sides connected to each other and neither accepted: of a connection made here, the one made
  /// by the peer, first with first and so on. They stay a pair, whatever ends besides them, and accept()
  /// gives no longer the peer's. Null if there is none.
  std::shared_ptr<const Link> crossing(Endpoint& engine, const Link& mine);

  /// Waits, for kToOpen and kToAccept at most, until what that peer has connected so far has opened here, and
  /// is known to be accept()'s or not. Called with the GIL.
  void await_crossing(Endpoint& engine, const Link& mine);

  void clear();

 private:
  /// Ids of closed connections are kept for their reason, but not without bound.
  static constexpr std::size_t kPrune = 1024;

  using Queue = std::deque<std::shared_ptr<const Link>>;
  static bool meant_for(const Link& link, Purpose purpose, const std::string& own_address);

  /// A program that accepts has so long to do so before a connection is taken for one that crosses.
  static constexpr std::chrono::seconds kToAccept{1};
  /// A connection that is on its way has so long to come up here.
  static constexpr std::chrono::seconds kToOpen{1};
  bool left_to_accept(const Link& link, const std::string& own_address) const;

  /// Takes what has come from the engine. With accept_mutex_: who looks for a connection finds it either
  /// there or here.
  Status sort_in(Endpoint& engine);
  bool knows_all_of(Endpoint& engine, Incarnation peer) const;  // with both mutexes
  bool decided_on_all_of(Endpoint& engine, Incarnation peer);

  std::atomic<std::uint64_t> made_{0};
  mutable std::mutex mutex_;
  std::unordered_map<std::uint64_t, std::shared_ptr<const Link>> links_;
  std::size_t prune_at_ = kPrune;

  std::mutex accept_mutex_;
  bool passive_ = false;
  bool accepts_ = false, accepts_local_ = false;  // that was called here
  Queue accepted_;
  Queue passively_;  // served without accept(), and crossed by none so far
};

}  // namespace p2p::python
