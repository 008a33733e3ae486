// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "engine/loop/reactor.h"
#include "transport/peer_end.h"

namespace p2p::engine {

/// What an error of this side says of memory that is not free although it is over: a target, a source.
inline constexpr std::string_view kMayStillWrite = "; it may still write here";
inline constexpr std::string_view kMayStillRead = "; it may still read here";

/// Stands between the end of a connection and the memory that its peer could reach by itself: until every
/// channel's twin is through, or the peer's process is at its end, the memory is not free. Thread-safe.
class Fence : public std::enable_shared_from_this<Fence> {
 public:
  /// `limit`: so long others wait for it who cannot say how long.
  Fence(Reactor& reactor, std::chrono::milliseconds limit) : reactor_(reactor), limit_(limit) {}

  /// Whether the twin is through with the memory; false: it may still use it, and the limit has passed.
  using Release = std::function<void(bool through)>;

  /// Of a channel that has ended here. Calls `release`, if there is one, once on the reactor's thread: when
  /// the twin can touch nothing any more, or after the limit.
  void add(std::unique_ptr<PeerEnd> end, Release release = nullptr);

  /// True once nothing of the peer is at work here any more.
  bool passed();

  /// Waits for that; false if it was not so by `deadline`.
  bool wait(std::chrono::steady_clock::time_point deadline);

  /// Calls `then` once, on the reactor's thread: when it is passed, or after the limit, if it is not. Keeps
  /// what the fence holds open until it is passed. On that thread.
  void when_passed(std::function<void(bool passed)> then);

  /// Calls every `release` that was not called yet. On that thread.
  void release_held();

  /// Readable when `passed` may answer otherwise; -1 if nothing was ever added.
  int fd() const;

 private:
  struct Held {
    Release release;
    const PeerEnd* end = nullptr;  // while it is not over
  };

  Reactor& reactor_;
  const std::chrono::milliseconds limit_;
  mutable Mutex mutex_;
  UniqueFd events_ P2P_GUARDED_BY(mutex_);  // epoll over what the ends give; stays open
  std::vector<std::unique_ptr<PeerEnd>> ends_ P2P_GUARDED_BY(mutex_);
  std::vector<Held> held_ P2P_GUARDED_BY(mutex_);
};

}  // namespace p2p::engine
