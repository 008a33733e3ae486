// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include "p2p/result.h"

namespace p2p::engine {

/// The session thread: one epoll loop with timers and an inbox, in which everything about control
/// connections happens. Handlers and tasks run on it, one at a time, and must not block. `post` may be called
/// from any thread; the rest from the reactor's thread (or before `start`).
class Reactor {
 public:
  using Clock = std::chrono::steady_clock;
  enum class TimerId : std::uint64_t {};

  static Result<std::unique_ptr<Reactor>> start();

  /// Runs what was posted so far, then stops and joins the thread; handlers and timers left are dropped.
  /// Not on the reactor's own thread.
  ~Reactor();

  /// The same, for an owner whose tasks still find the reactor through it. Not on the reactor's thread.
  void stop();

  /// Runs `task` on the reactor's thread, in the order of the posts.
  void post(std::function<void()> task);

  /// `handler` gets the epoll events of `fd` (level-triggered). The caller keeps `fd` open until `unwatch`;
  /// a handler may unwatch any descriptor, its own included, and gets no event after that.
  Status watch(int fd, std::uint32_t events, std::function<void(std::uint32_t)> handler);
  void change(int fd, std::uint32_t events);
  void unwatch(int fd);

  /// Runs `task` once, not before `delay`, and after the events and posts that came by the time it fell due,
  /// as long as those fit one round of 64 events. Timers run in the order in which they fall due. Ids start
  /// at 1 and are not used again; cancelling one that ran or was cancelled does nothing.
  TimerId after(Clock::duration delay, std::function<void()> task);
  void cancel(TimerId timer);

 private:
  struct Loop;
  explicit Reactor(std::unique_ptr<Loop> loop);
  std::unique_ptr<Loop> loop_;
};

}  // namespace p2p::engine
