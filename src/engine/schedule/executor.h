// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "base/mutex.h"
#include "engine/request/post_unlock_actions.h"
#include "p2p/result.h"

namespace p2p::engine {

class ChannelRunner;

/// The thread to which runners belong: a worker. All but `reserve`, `post` and `signal` are for its runners,
/// with its mutex held.
class Executor {
 public:
  virtual ~Executor() = default;

  /// Whoever holds it is the thread for that time.
  virtual Mutex& mutex() = 0;

  /// Counts a runner, until it is removed.
  virtual void reserve() = 0;

  /// Runs `task` on the thread, with the mutex held. Returns at once.
  virtual void post(std::function<void(PostUnlockActions&)> task) = 0;

  /// There is something to do for the runner.
  virtual void signal(std::shared_ptr<ChannelRunner> runner) = 0;

  /// Looks at the runner when `fd` is readable; -1: it has none.
  virtual Status add(std::shared_ptr<ChannelRunner> runner, int fd) = 0;
  virtual void remove(const ChannelRunner& runner, int fd) = 0;
  virtual void arm(ChannelRunner& runner, int fd, bool on) = 0;

  /// Looks at the runner until `ChannelRunner::stays_active` says no. On the thread itself.
  virtual void look_at(std::shared_ptr<ChannelRunner> runner) = 0;
};

}  // namespace p2p::engine
