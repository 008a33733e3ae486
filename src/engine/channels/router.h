// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "engine/memory/region.h"
#include "engine/memory/remote_region.h"
#include "engine/schedule/lane.h"
#include "p2p/connection.h"

namespace p2p::engine {

/// The choice among the lanes of one connection: the first transport, in the order of preference, that is up
/// on both sides, carries the pair of places and has both memories registered. One whose channels are all
/// lost, and being opened again, comes after those that have some. Thread-safe; to look takes no lock.
class Router {
 public:
  /// `required`: this transport or none, for all memory that it moves bytes between; empty: any.
  explicit Router(const TransportList& transports, std::string required = "");

  /// The lane is up on both sides.
  void open(std::size_t transport, std::shared_ptr<Lane> lane);

  /// The transport cannot be used: not at all, or no more. Its lane, if it has one, can still be found.
  void close(std::size_t transport, std::string reason);

  /// The same. Where it is closed already a reason that is nearer to the cause stays: to have found the peer
  /// gone or late says less than any other.
  void close(std::size_t transport, const Error& why);

  /// The peer says why it closed the transport: is told unless more is known, or the lane was up.
  void heard(std::size_t transport, std::string reason);

  /// It cannot be used yet: its lane comes up, or is closed.
  void await(std::size_t transport);

  /// The connection is over; no lane is found any more.
  void close_all(const std::string& reason);

  bool usable(std::size_t transport) const;

  /// The same, or its lane may still come up: regions are imported for it meanwhile.
  bool may_be_usable(std::size_t transport) const;
  bool any_usable() const;

  /// No transport is usable any more, nor may any be: the connection ends, and its end says why.
  bool over() const;

  /// Some lane that is up, or may come up, wants the owner's message for a region in `place`.
  bool wants_exported_key(MemoryPlace place) const;

  /// Null if the transport never had a lane that was up, or the connection is over.
  std::shared_ptr<Lane> lane(std::size_t transport) const;

  /// The transport that moves bytes between the regions, or why none does; `around`: another one than this.
  /// Warns, once for each reason, of what keeps GPU memory from a faster one.
  Result<std::size_t> choose(const Region& local, const RemoteRegion& remote,
                             std::optional<std::size_t> around = std::nullopt) const;

  /// The same choice, with what is in the way of the transports before it.
  Explanation explain(const Region& local, const RemoteRegion& remote) const;

  /// The channel for messages: `now` while it works, else one of the best lane that carries them; null: none
  /// does.
  std::shared_ptr<ChannelRunner> message_runner(const std::shared_ptr<ChannelRunner>& now) const;

  /// A row for each pair of memory kinds.
  std::vector<Route> routes() const;

 private:
  struct Row {
    std::optional<std::string> closed = "the peer does not offer it";  ///< why not usable
    bool awaited = false;                                              ///< and may be
    bool guessed = false;  ///< `closed` says no more than that the peer is gone or late
    std::shared_ptr<Lane> lane;
  };

  using Rows = std::vector<Row>;  // one for each transport

  const Rows& rows() const { return *rows_.load(std::memory_order_acquire); }
  void publish(Rows rows) P2P_REQUIRES(mutex_);
  std::optional<Explanation::Passed> obstacle(const Row& row, std::size_t transport, const Region& local,
                                              const RemoteRegion& remote) const;
  bool is_required(std::size_t transport, const Region& local, const RemoteRegion& remote) const;
  bool is_news(const Explanation::Passed& passed, std::size_t transport) const;
  Route best(const Rows& rows, MemoryKind local, MemoryKind remote) const;

  const TransportList& transports_;
  const std::string required_;
  mutable Mutex mutex_;
  mutable std::set<std::string> warned_ P2P_GUARDED_BY(mutex_);  // of which reasons

  // A transport is awaited, opened and closed once each, so that all versions are kept: who reads one needs
  // no lock, and no count of readers.
  std::vector<std::unique_ptr<const Rows>> versions_ P2P_GUARDED_BY(mutex_);
  std::atomic<const Rows*> rows_{nullptr};  // the latest of them
};

}  // namespace p2p::engine
