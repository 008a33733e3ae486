// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "engine/messaging/message_stream.h"
#include "engine/request/post_unlock_actions.h"
#include "engine/request/transfer.h"

namespace p2p::engine {

/// Notifications of one connection, both ways. They travel as messages, in items, in order. Each side says
/// how many it keeps until its application takes them; further ones wait on the other side. Thread-safe.
class Notifications {
 public:
  /// A number of notifications and of their bytes.
  struct Amount {
    std::uint64_t count = 0;
    std::uint64_t bytes = 0;
  };

  /// `room`: what is kept here at most. No notification has more than half of its bytes.
  Notifications(std::shared_ptr<MessageStream> messages, Amount room)
      : messages_(std::move(messages)), room_(room) {}

  /// What the peer keeps at most. Nothing leaves before this is known.
  void set_peer_room(Amount room);

  /// `state` is finished when the peer has all of it.
  void send(std::string_view payload, std::shared_ptr<TransferState> state);

  std::vector<std::string> take();

  Status on(const wire::Notify& item);
  void on(const wire::NotifyDone& done, PostUnlockActions& actions);
  Status on(const wire::NotifyTaken& taken, PostUnlockActions& actions);

  std::uint64_t sent() const;
  std::uint64_t received() const;

  /// Sent ones that had to wait until the peer's application had taken others.
  std::uint64_t delayed() const;

  /// Sent ones that the peer has not confirmed.
  std::size_t open() const;

  /// Those that wait fail: the peer's application takes no more.
  void stop(const Error& error);

  void close(const Error& error);

 private:
  struct Waiting {
    std::string payload;
    std::shared_ptr<TransferState> state;
  };

  bool fits(std::uint64_t bytes) const P2P_REQUIRES(mutex_);
  void say(std::string_view payload, std::shared_ptr<TransferState> state) P2P_REQUIRES(mutex_);
  void say_waiting(PostUnlockActions& actions) P2P_REQUIRES(mutex_);
  bool too_long(std::uint64_t bytes) const P2P_REQUIRES(mutex_) {
    return room_known_ && bytes > peer_room_.bytes / 2;
  }
  Status refuse(std::uint64_t bytes) const P2P_REQUIRES(mutex_);

  const std::shared_ptr<MessageStream> messages_;
  const Amount room_;
  mutable Mutex mutex_;
  bool closed_ P2P_GUARDED_BY(mutex_) = false;
  Error error_ P2P_GUARDED_BY(mutex_);

  // Sent: all, and as far as the peer's application has taken them.
  Amount peer_room_ P2P_GUARDED_BY(mutex_);
  bool room_known_ P2P_GUARDED_BY(mutex_) = false;
  Amount said_ P2P_GUARDED_BY(mutex_);
  Amount taken_ P2P_GUARDED_BY(mutex_);
  std::deque<Waiting> waiting_ P2P_GUARDED_BY(mutex_);
  std::uint64_t delayed_ P2P_GUARDED_BY(mutex_) = 0;
  std::map<std::uint64_t, std::shared_ptr<TransferState>> open_ P2P_GUARDED_BY(mutex_);

  // Received: all, what was taken of them, and what the peer was told of that.
  std::string coming_ P2P_GUARDED_BY(mutex_);
  std::vector<std::string> came_ P2P_GUARDED_BY(mutex_);
  Amount received_ P2P_GUARDED_BY(mutex_);
  Amount told_ P2P_GUARDED_BY(mutex_);
};

}  // namespace p2p::engine
