// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "engine/lane.h"
#include "engine/submission.h"
#include "transport/transport.h"

namespace p2p::engine {

class Worker;

/// A channel in its worker. The worker's mutex guards all but the constants.
struct Slot : std::enable_shared_from_this<Slot> {
  Worker* worker = nullptr;    // constant
  std::shared_ptr<Lane> lane;  // constant

  std::unique_ptr<ControlLink> control;
  std::unique_ptr<Channel> channel;  ///< null once detached

  /// Called once, without the worker's mutex: success when the channel is ready, the error when it fails,
  /// also later.
  std::function<void(const Status&)> tell;

  std::string rail;         ///< constant
  std::string description;  ///< written before the lane knows the slot
  bool ready = false;
  bool detached = false;
  bool active = false;  ///< in the worker's list of channels to look at
  bool due = false;     ///< signalled, and not looked at since
  int fd = -1;          ///< registered with the worker's epoll
  std::chrono::steady_clock::time_point moved_at{};
  std::vector<Piece> flying;  ///< by BatchId - 1; part null: free
  std::vector<std::uint32_t> free;
  std::vector<Completion> completions;  ///< kept for its capacity

  std::atomic<bool> signalled{false};

  // Written with the worker's mutex; its thread also reads them without.
  std::atomic<int> assists{0};  ///< waiting callers that drive it; its descriptor is then disarmed
  std::atomic<std::chrono::steady_clock::time_point> called_at{};  ///< when a caller's thread last moved it
  std::atomic<bool> idle{true};                                    ///< nothing is under way

  /// Something is under way here that no descriptor announces.
  bool busy() const { return channel->busy() || lane->awaits_gates(*this); }

  /// True while a caller that started a copy by a device is taken to wait for it, and while callers start
  /// copies on other channels: a worker that looked for work then would take theirs.
  bool left_to_caller(std::chrono::steady_clock::time_point now) const;
};

enum class Turn : std::uint8_t { kBusy, kMoved, kIdle };

/// One thread that moves its channels: polls them while something moves and for the spin time after, sleeps
/// in epoll otherwise. Whoever holds the mutex is the worker for that time, so that a caller can start small
/// work, and wait for it, without waking a thread. Callbacks run with the mutex released.
class Worker {
 public:
  static Result<std::unique_ptr<Worker>> start(std::chrono::nanoseconds spin, unsigned number);

  /// Stops and joins the thread. No channel may be attached any more.
  ~Worker();

  /// Takes a channel that was connected, or is connecting; the worker brings it to readiness.
  void attach(std::shared_ptr<Slot> slot);

  /// Destroys the channel; its pieces fail with `error`. Returns when that is done.
  void detach(Slot& slot, const Error& error);

  /// Hands a message to the channel.
  void control(const std::shared_ptr<Slot>& slot, std::vector<std::byte> message);

  /// Asks the slot's channel to leave the local memory of a transfer alone. Returns at once.
  void abandon(const std::shared_ptr<Slot>& slot, const std::shared_ptr<TransferState>& state);

  /// There is something to do for the slot.
  void signal(const std::shared_ptr<Slot>& slot);

  /// Does one turn for the slot on this thread, unless somebody is at it.
  Turn try_turn(Slot& slot, Ended& ended);

  /// Counts a channel that will be attached, until it is detached.
  void reserve() { load_.fetch_add(1, std::memory_order_relaxed); }

  pthread_t thread() { return thread_.native_handle(); }

  /// Channels reserved: for spreading.
  unsigned load() const { return load_.load(std::memory_order_relaxed); }

 private:
  friend class Assist;
  struct News;

  Worker(std::chrono::nanoseconds spin, UniqueFd epoll, UniqueFd wake);
  void run();
  void post(std::function<void(News&)> task);
  void wake();
  bool work(News& news) P2P_REQUIRES(mutex_);
  void sleep();
  bool turn(Slot& slot, News& news) P2P_REQUIRES(mutex_);
  bool pump(Slot& slot, News& news) P2P_REQUIRES(mutex_);
  bool left_to_callers();
  void complete(Slot& slot, Completion& completion, News& news) P2P_REQUIRES(mutex_);
  void drop(Slot& slot, const Error& error, News& news) P2P_REQUIRES(mutex_);
  void activate(const std::shared_ptr<Slot>& slot) P2P_REQUIRES(mutex_);
  void arm(Slot& slot, bool on) P2P_REQUIRES(mutex_);

  const std::chrono::nanoseconds spin_;
  UniqueFd epoll_;
  UniqueFd wake_;
  std::atomic<unsigned> load_{0};
  std::atomic<bool> stop_{false};
  std::atomic<bool> asleep_{false};

  Mutex inbox_mutex_;
  std::vector<std::function<void(News&)>> inbox_ P2P_GUARDED_BY(inbox_mutex_);
  std::vector<std::shared_ptr<Slot>> signals_ P2P_GUARDED_BY(inbox_mutex_);

  Mutex mutex_;
  std::vector<std::shared_ptr<Slot>> slots_ P2P_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Slot>> active_;  // of the thread alone

  std::thread thread_;
};

/// While it lives a caller drives the slot itself and the worker's thread is not woken for it.
class Assist {
 public:
  explicit Assist(Slot& slot);
  Assist(Assist&& other) noexcept : slot_(std::exchange(other.slot_, nullptr)) {}
  Assist& operator=(Assist&&) = delete;
  ~Assist();

  /// False: another thread is at the slot.
  bool begun() const { return slot_ != nullptr; }

 private:
  Slot* slot_;
};

}  // namespace p2p::engine
