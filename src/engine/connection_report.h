// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/channels/lane_set.h"
#include "engine/memory/region.h"
#include "engine/messaging/notifications.h"
#include "engine/messaging/receives.h"
#include "engine/observe/path_history.h"
#include "engine/transfer/region_exchange.h"
#include "engine/transfer/transfers.h"
#include "p2p/connection.h"

namespace p2p::engine {

/// What a connection tells of itself: its routes, why a pair of regions takes one, its numbers. Thread-safe.
class ConnectionReport {
 public:
  struct Parts {
    std::shared_ptr<const RegionTable> regions;
    std::shared_ptr<const LaneSet> lanes;
    std::shared_ptr<const RegionExchange> imports;
    std::shared_ptr<const Transfers> transfers;
    std::shared_ptr<const Receives> receives;
    std::shared_ptr<const Notifications> notifications;
  };

  explicit ConnectionReport(Parts parts) : parts_(std::move(parts)) {}

  void session_broke(const Error& why) { session_.lost("", why.message); }
  void session_resumed() { session_.returned(); }
  void reads_paused() { reads_paused_.fetch_add(1, std::memory_order_relaxed); }

  /// The peer lives and has not answered for so long; 0: it answers.
  void slow_for(std::chrono::milliseconds still) { slow_for_ = still; }

  std::vector<Route> routes() const;
  Result<Explanation> explain(RegionId local, RemoteRegionId remote) const;
  Stats stats() const;

  /// How connection `id` carries what, at info level.
  void log_routes(ConnectionId id) const;

 private:
  const Parts parts_;
  PathHistory session_;
  std::atomic<std::uint64_t> reads_paused_{0};
  std::atomic<std::chrono::milliseconds> slow_for_{};
};

}  // namespace p2p::engine
