// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "engine/reactor.h"
#include "transport/peer_end.h"

namespace p2p::engine {

/// Stands between the end of a connection and the memory that its peer could reach by itself: until every
/// channel's twin is through, or the peer's process is at its end, the memory is not free. Thread-safe.
class Fence {
 public:
  /// Of a channel that has ended here.
  void add(std::unique_ptr<PeerEnd> end);

  /// True once nothing of the peer is at work here any more.
  bool passed();

  /// Waits for that; false if it was not so by `deadline`.
  bool wait(std::chrono::steady_clock::time_point deadline);

  /// Calls `then` once, on the reactor's thread: when it is passed, or after `limit`, if it is not. Keeps
  /// what the fence holds open until it is passed.
  static void when_passed(const std::shared_ptr<Fence>& fence, Reactor& reactor,
                          std::chrono::milliseconds limit, std::function<void(bool passed)> then);

  /// Readable when `passed` may answer otherwise; -1 if nothing was ever added.
  int fd() const;

 private:
  mutable Mutex mutex_;
  UniqueFd events_ P2P_GUARDED_BY(mutex_);  // epoll over what the ends give; stays open
  std::vector<std::unique_ptr<PeerEnd>> ends_ P2P_GUARDED_BY(mutex_);
};

}  // namespace p2p::engine
