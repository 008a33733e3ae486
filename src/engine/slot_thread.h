// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "base/mutex.h"
#include "engine/deferred.h"
#include "p2p/result.h"

namespace p2p::engine {

class Slot;

/// The thread to which slots belong: a worker. All but `reserve`, `post` and `signal` are for its slots, with
/// its mutex held.
class SlotThread {
 public:
  virtual ~SlotThread() = default;

  /// Whoever holds it is the thread for that time.
  virtual Mutex& mutex() = 0;

  /// Counts a slot, until it is removed.
  virtual void reserve() = 0;

  /// Runs `task` on the thread, with the mutex held. Returns at once.
  virtual void post(std::function<void(Deferred&)> task) = 0;

  /// There is something to do for the slot.
  virtual void signal(std::shared_ptr<Slot> slot) = 0;

  /// Looks at the slot when `fd` is readable; -1: it has none.
  virtual Status add(std::shared_ptr<Slot> slot, int fd) = 0;
  virtual void remove(const Slot& slot, int fd) = 0;
  virtual void arm(Slot& slot, int fd, bool on) = 0;

  /// Looks at the slot until `Slot::stays_active` says no. On the thread itself.
  virtual void look_at(std::shared_ptr<Slot> slot) = 0;
};

}  // namespace p2p::engine
