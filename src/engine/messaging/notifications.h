// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "engine/memory/peer_budget.h"
#include "engine/messaging/message_stream.h"
#include "engine/request/post_unlock_actions.h"
#include "engine/request/transfer.h"

namespace p2p::engine {

/// Notifications of one connection, both ways: bytes that one application sends to the other, in order. Each
/// side has a window, the amount that it keeps until its application takes it; what is more waits at the
/// sender, which gets credit back as the application takes some. Thread-safe.
class Notifications {
 public:
  /// A number of notifications and of their bytes.
  struct Amount {
    std::uint64_t count = 0;
    std::uint64_t bytes = 0;
  };

  /// `room`: the window of this side. A notification has at most half of its bytes.
  Notifications(std::shared_ptr<MessageStream> messages, Amount room, std::shared_ptr<PeerBudget> budget)
      : messages_(std::move(messages)), room_(room), kept_(std::move(budget)) {}

  /// The window of the peer. Nothing leaves before this is called.
  void set_peer_room(Amount room);

  /// Finishes `state` when the peer's engine has all of it; kMessageTooLong for more than half of its window.
  void send(std::string_view payload, std::shared_ptr<TransferState> state);

  /// All that have come, oldest first. Gives credit back to the peer.
  std::vector<std::string> take();

  /// Messages of the peer, each under the stream's lock. kProtocol for what breaks the window or the order.
  Status on(const wire::Notify& notify, PostUnlockActions& actions);
  void on(const wire::NotifyDone& done, PostUnlockActions& actions);
  Status on(const wire::NotifyTaken& taken, PostUnlockActions& actions);

  /// `callback` is called, without a lock, after each that has come from now on.
  void on_arrival(std::function<void()> callback);

  std::uint64_t sent() const;
  std::uint64_t received() const;

  /// Sent ones that had to wait until the peer's application had taken others.
  std::uint64_t delayed() const;

  /// Sent ones that the peer has not confirmed.
  std::size_t open() const;

  /// Fails those that wait for credit, which cannot come any more. Those that have left go on.
  void stop(const Error& error);

  /// The connection ended: fails everything.
  void close(const Error& error);

 private:
  struct Waiting {
    std::string payload;
    std::shared_ptr<TransferState> state;
  };

  bool fits(std::uint64_t bytes) const P2P_REQUIRES(mutex_);
  Status send_now(std::string_view payload, std::shared_ptr<TransferState> state) P2P_REQUIRES(mutex_);
  void send_waiting(PostUnlockActions& actions) P2P_REQUIRES(mutex_);
  bool too_long(std::uint64_t bytes) const P2P_REQUIRES(mutex_) {
    return room_known_ && bytes > peer_room_.bytes / 2;
  }
  Status refuse(std::uint64_t bytes) const P2P_REQUIRES(mutex_);

  const std::shared_ptr<MessageStream> messages_;
  const Amount room_;
  mutable Mutex mutex_;
  bool closed_ P2P_GUARDED_BY(mutex_) = false;
  Error error_ P2P_GUARDED_BY(mutex_);

  // Sending. `sent_` and `taken_` count from the start; their difference takes up the peer's window.
  Amount peer_room_ P2P_GUARDED_BY(mutex_);
  bool room_known_ P2P_GUARDED_BY(mutex_) = false;
  Amount sent_ P2P_GUARDED_BY(mutex_);
  Amount taken_ P2P_GUARDED_BY(mutex_);
  std::deque<Waiting> waiting_ P2P_GUARDED_BY(mutex_);
  std::uint64_t delayed_ P2P_GUARDED_BY(mutex_) = 0;
  std::map<std::uint64_t, std::shared_ptr<TransferState>> open_ P2P_GUARDED_BY(mutex_);

  // Receiving. `credited_` is what the peer was told to be taken, also from the start.
  std::string coming_ P2P_GUARDED_BY(mutex_);  // the parts so far of one
  std::vector<std::string> came_ P2P_GUARDED_BY(mutex_);
  std::vector<std::function<void()>> watchers_ P2P_GUARDED_BY(mutex_);
  PeerShare kept_ P2P_GUARDED_BY(mutex_);  // by both
  Amount received_ P2P_GUARDED_BY(mutex_);
  Amount credited_ P2P_GUARDED_BY(mutex_);
};

}  // namespace p2p::engine
