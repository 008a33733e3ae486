// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "base/rate_limited_log.h"
#include "engine/channels/context.h"
#include "engine/connection.h"

namespace p2p::engine {

/// The connections of an endpoint: makes them, keeps them until they have closed, queues those that peers
/// opened for `accept`, and adds up their counters. Thread-safe. Must outlive the reactor's last task.
class Connections {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Connections(std::shared_ptr<Context> context) : context_(std::move(context)) {}

  /// Null after `close`. In a process forked from the endpoint's, a connection on which every call fails.
  std::shared_ptr<Connection> add(Role role);

  /// One on which every call fails for this reason.
  static std::shared_ptr<Connection> ended(const std::shared_ptr<Context>& context, const Error& why);

  /// The next that a peer has opened; null if none comes before `deadline`.
  std::shared_ptr<Connection> accept(Clock::time_point deadline);

  /// How many were ever queued for `accept`; waits until it is not `seen`, or until `deadline`.
  std::uint64_t wait_for_peer(std::uint64_t seen, Clock::time_point deadline) const;

  std::vector<std::shared_ptr<Connection>> all() const;

  /// Ends all and waits for that; none is added any more. What has not ended by `deadline` ends then without
  /// hearing from its peer, so that nothing that an application waits for stays open.
  void close(const Error& error, Clock::time_point deadline);

  /// `close` was called.
  bool closing() const {
    MutexLock lock(mutex_);
    return closing_;
  }

  /// Sums over open connections and those that have ended.
  Stats stats() const;
  std::vector<Latency> latencies() const;

 private:
  void opened(const std::shared_ptr<Connection>& connection, Role role);
  bool wait_until_none(Clock::time_point deadline);
  bool keep_for_accept(const std::shared_ptr<Connection>& connection);
  void closed(const std::shared_ptr<Connection>& connection);
  std::vector<std::shared_ptr<Connection>> forget_ended() P2P_REQUIRES(mutex_);
  void changed();

  const std::shared_ptr<Context> context_;
  RateLimitedLog refusals_{LogLevel::kWarning};

  mutable Mutex mutex_;
  std::uint64_t next_id_ P2P_GUARDED_BY(mutex_) = 0;
  std::map<ConnectionId, std::shared_ptr<Connection>> living_ P2P_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<Connection>> unaccepted_ P2P_GUARDED_BY(mutex_);
  std::uint64_t arrived_ P2P_GUARDED_BY(mutex_) = 0;  // how many were ever put there
  Stats ended_ P2P_GUARDED_BY(mutex_);                // sums of those that have ended
  std::vector<Latency> ended_latencies_ P2P_GUARDED_BY(mutex_);
  bool closing_ P2P_GUARDED_BY(mutex_) = false;
  std::atomic<std::uint32_t> changes_{0};  // futex: bumped when living_ or unaccepted_ changed
};

}  // namespace p2p::engine
