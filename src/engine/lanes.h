// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "engine/context.h"
#include "engine/lane.h"
#include "engine/session.h"
#include "p2p/stats.h"

namespace p2p::engine {

/// The lanes of one connection, one for each transport that both sides can use, from the offer of channels to
/// their end; and the choice among them. Messages come on the reactor's thread; routes may be asked anywhere.
class Lanes : public std::enable_shared_from_this<Lanes> {
 public:
  /// `changed` is called, on the reactor's thread, when a lane became usable or was given up.
  Lanes(std::shared_ptr<Context> context, SendMessage send, std::function<void()> changed);

  /// Finds what both sides can use and, as connector, opens and offers the channels.
  void start(Role role, const SessionPeer& peer);

  Status on(const wire::ChannelOffer& offer);
  Status on(const wire::ChannelAnswer& answer);
  Status on(const wire::ChannelsReady& ready);
  Status on(wire::ChannelControl control);

  /// Gives up what is not up yet.
  void expire(const Error& error);

  /// Every lane is up on both sides or given up.
  bool settled() const;
  bool any_usable() const;

  /// Transports with a lane that is up, and whether they want the owner's word for a region in `place`.
  bool usable(std::size_t transport) const;
  bool wants_exported_key(MemoryPlace place) const;

  /// The transport that moves bytes between the regions, or why none does.
  Result<std::size_t> route(const Region& local, const RemoteRegion& remote) const;

  std::shared_ptr<Lane> lane(std::size_t transport) const;

  /// Pieces sent again after a channel was lost.
  std::uint64_t retried() const;

  /// A row for each pair of memory kinds.
  std::vector<Route> routes() const;

  /// Asks all channels to leave a transfer's local memory alone.
  void abandon(const std::shared_ptr<TransferState>& state) const;

  /// Ends all channels. What is under way fails with `error`. Any thread.
  void close(const Error& error);

 private:
  struct Entry {
    std::string reason = "the peer does not offer it";  ///< why not usable; empty once up on both sides
    bool expected = false;
    bool local_done = false;  ///< up or given up here, and the peer was told
    bool peer_done = false;
    std::shared_ptr<Lane> lane;
    std::vector<std::shared_ptr<Slot>> slots;
    std::size_t ready = 0;
  };

  Entry* find(const std::string& transport) P2P_REQUIRES(mutex_);
  std::size_t index_of(const Entry& entry) const P2P_REQUIRES(mutex_);
  Result<std::vector<Bytes>> open(Entry& entry, std::size_t most) P2P_REQUIRES(mutex_);
  Status connect(Entry& entry, const std::vector<Bytes>& addresses) P2P_REQUIRES(mutex_);
  void give_up(Entry& entry, std::string reason) P2P_REQUIRES(mutex_);
  void local_done(Entry& entry) P2P_REQUIRES(mutex_);
  void told(std::size_t transport, const Status& status);
  Worker& least_loaded() const;

  /// Ends what was given up and reports changes, with the mutex free.
  void sweep();

  const std::shared_ptr<Context> context_;
  const SendMessage send_;
  const std::function<void()> changed_;

  mutable Mutex mutex_;
  Role role_ P2P_GUARDED_BY(mutex_) = Role::kConnector;
  SessionPeer peer_ P2P_GUARDED_BY(mutex_);
  std::vector<Entry> entries_ P2P_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Slot>> trash_ P2P_GUARDED_BY(mutex_);
  bool started_ P2P_GUARDED_BY(mutex_) = false;
  bool dirty_ P2P_GUARDED_BY(mutex_) = false;
  bool closed_ P2P_GUARDED_BY(mutex_) = false;
};

}  // namespace p2p::engine
