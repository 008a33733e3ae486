// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "p2p/api.h"
#include "p2p/memory.h"

namespace p2p {

/// What one transport moved for this side's own transfers that succeeded. What the peer's transfers moved is
/// in its counters: where memory is reached by one side alone (`cma`, `cuda_ipc`, `rdma`) the other one does
/// not take part and cannot count.
struct TransportBytes {
  std::string transport;
  std::uint64_t written = 0;  ///< from here to the peer
  std::uint64_t read = 0;     ///< from the peer to here
};

/// Counters since the connection (or endpoint) was made. Cheap enough to stay on.
struct Stats {
  std::uint64_t transfers_started = 0;
  std::uint64_t transfers_completed = 0;
  std::uint64_t transfers_failed = 0;
  std::uint64_t bytes_written = 0;  ///< by my write and send, acknowledged
  std::uint64_t bytes_read = 0;     ///< by my read, landed
  std::uint64_t messages_received = 0;
  std::uint64_t notifications_sent = 0;
  std::uint64_t notifications_received = 0;
  std::uint64_t notifications_delayed = 0;  ///< waited until the peer's application had taken others
  std::uint64_t batches_retried = 0;        ///< sent again on another channel after one was lost

  /// How often messages of the peer were left unread, because it did not read the answers to earlier ones.
  std::uint64_t reads_paused = 0;

  std::uint64_t channels_lost = 0;      ///< that had been up; what was under way on them went over others
  std::uint64_t channels_returned = 0;  ///< of these, opened again
  std::uint64_t session_resumes = 0;    ///< its TCP connection broke, and it went on over another one
  std::vector<TransportBytes> by_transport;  ///< that moved anything; sums are bytes_written and bytes_read

  // How much there is now.
  std::uint64_t pieces_queued = 0;       ///< parts of transfers that wait for room in a channel
  std::uint64_t channels = 0;            ///< that are up, of all transports
  std::uint64_t channels_encrypted = 0;  ///< of these
  std::uint64_t channels_wanted = 0;     ///< how many there are if none is lost

  // Of endpoints alone.
  std::uint64_t strangers_refused = 0;     ///< connections closed before they had proven themselves
  std::uint64_t connections_refused = 0;   ///< of peers, because too many waited to be accepted
  std::uint64_t connections_waiting = 0;   ///< now, to be accepted
  std::uint64_t bytes_kept_for_peers = 0;  ///< now, of those that Options::max_peer_bytes bounds
  std::uint64_t registered_regions = 0;    ///< now
  std::uint64_t registered_bytes = 0;      ///< of these
};

/// How long successful transfers over one transport took, from the call to the outcome. Of those under 64 KiB
/// every eighth is timed, and counts as eight.
struct Latency {
  static constexpr std::size_t kBuckets = 26;

  /// The upper bound of a bucket's times, 2^bucket microseconds; the last bucket has none.
  static constexpr std::chrono::microseconds bound(std::size_t bucket) {
    return std::chrono::microseconds(std::int64_t{1} << bucket);
  }

  std::string transport;  ///< "several": its parts went over different ones
  bool reads = false;     ///< else writes, messages that are written included
  std::array<std::uint64_t, kBuckets> counts{};
  std::chrono::nanoseconds sum{};
};

/// Whether this process can use a transport.
struct TransportStatus {
  std::string name;
  std::string reason;  ///< why it cannot be used, one sentence; empty: it can

  bool usable() const { return reason.empty(); }
};

/// Which transport moves bytes between two kinds of memory, and why not a better one.
struct Route {
  MemoryKind local = MemoryKind::kHost;
  MemoryKind remote = MemoryKind::kHost;
  std::string transport;  ///< empty: no route
  std::string reason;     ///< one sentence: why this one, and why each better one is not used
  std::string detail;     ///< the channels now: how many, and for each NIC what they run over
  std::string history;    ///< channels and sessions that were lost, when and why, and came back; empty: none
};

/// Why a transport does not move the bytes of a pair of regions.
enum class RouteObstacle : std::uint8_t {
  kUnusable,       ///< on this side, on the peer's or between the two
  kNotCarried,     ///< it does not move bytes between these kinds of memory
  kNotRegistered,  ///< it does not take the local memory
  kNotShared,      ///< the peer's memory cannot be reached by it
};

/// "unusable", "not_carried", "not_registered", "not_shared".
P2P_API std::string_view to_string(RouteObstacle obstacle);

/// What one pair of regions takes.
struct Explanation {
  struct Passed {
    std::string transport;
    RouteObstacle obstacle = RouteObstacle::kUnusable;
    std::string reason;  ///< one sentence
  };
  std::string transport;       ///< empty: nothing moves bytes between the two
  std::string detail;          ///< its channels now
  std::vector<Passed> passed;  ///< preferred to it, each with what is in its way
};

}  // namespace p2p
