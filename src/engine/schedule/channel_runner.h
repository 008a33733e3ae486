// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "base/mutex.h"
#include "engine/memory/fence.h"
#include "engine/request/post_unlock_actions.h"
#include "engine/schedule/batch_pipeline.h"
#include "engine/schedule/message_port.h"
#include "engine/schedule/policy.h"
#include "engine/schedule/rate_estimator.h"
#include "transport/transport.h"

namespace p2p::engine {

class Lane;
class Worker;

enum class Turn : std::uint8_t { kBusy, kMoved, kIdle };

/// One channel at work: who moves it and its batches, and when, until its end. Its thread does, and so do
/// callers, one at a time. Thread-safe.
class ChannelRunner : public std::enable_shared_from_this<ChannelRunner> {
 public:
  using Clock = std::chrono::steady_clock;

  struct Setup {
    std::string rail;
    std::unique_ptr<ControlLink> control;
    std::unique_ptr<Channel> channel;

    /// Called without locks: success when the channel is ready, the error when it fails, also later.
    std::function<void(const Status&)> report;

    /// Gets what is left of the peer's twin when the channel ends; null: nobody asks.
    std::shared_ptr<Fence> fence = nullptr;

    /// For a channel that carries messages; null: none go over it.
    std::unique_ptr<MessagePort> messages = nullptr;

    std::string_view transport{};  ///< its name, for traces
    std::uint32_t number = 0;      ///< of the channel among those of its lane, on both sides the same
  };

  ChannelRunner(Worker& thread, std::shared_ptr<Lane> lane, Setup setup);

  const std::string& rail() const { return rail_; }
  std::uint32_t number() const { return number_; }
  const std::shared_ptr<Lane>& lane() const { return lane_; }

  /// MessageStream may travel over its channel.
  bool carries_messages() const { return carries_messages_; }

  /// Of the channel, once it is ready.
  const std::string& description() const { return description_; }
  bool encrypted() const { return encrypted_; }

  Bytes address();

  /// The channel's `connect`; kPeerGone if it was stopped.
  Status connect(ByteView peer_address);

  /// The thread brings the channel to readiness, and the lane then gets the runner.
  void start();

  /// Destroys the channel; its items fail with `error`. Returns when that is done.
  void stop(const Error& error) { end(error, false); }

  /// The same if the channel is not ready; false if it is, and works on.
  bool give_up(const Error& error) { return end(error, true); }

  /// No report comes any more, but for one that is on its way.
  void mute();

  /// When something last moved; nothing unless it is up, and nothing is under way, and no caller at it.
  std::optional<Clock::time_point> quiet_since();

  /// All 0 while the channel is not up.
  PathUse path_use();

  /// The other host was heard of over its channel; false also where that is not known.
  bool heard_within(std::chrono::milliseconds time);

  /// Comes back to its lane, which has forgotten it, unless it has ended.
  void rejoin();

  /// Calls it with the channel, on the channel's thread, if there is one by then; an error costs the channel.
  /// Returns at once.
  void tell(std::function<Status(Channel&)> call);

  /// Asks the channel to leave the local memory of a transfer alone. Returns at once.
  void abandon(std::shared_ptr<TransferState> state);

  /// Has the thread look at the runner, also where a caller has just been at it.
  void signal();
  bool signalled() const { return signalled_.load(); }

  /// Takes work from the lane and moves it on, on this thread, unless another one is at it. `first`, if
  /// given, goes before what the lane has; it stays with the caller unless the channel is ready for it.
  Turn try_turn(PostUnlockActions& actions, Clock::time_point now = Clock::now(), WorkItem* first = nullptr);

  /// The same, and looks again for a while if another thread is at it.
  Turn await_turn(PostUnlockActions& actions);

  /// A caller drives the runner until `end_assist`; its thread is not woken meanwhile. False: another thread
  /// is at it.
  bool begin_assist();
  void end_assist();
  bool assisted() const { return assists_.load() != 0; }

  /// What is under way, and how fast it goes. Needs no lock.
  const RateEstimator& pace() const { return pace_; }

  // For its thread:

  /// A caller who drives it, or was at it just now, is taken to look after it, or to be about to start
  /// something. Needs no lock.
  bool left_to_caller(Clock::time_point now) const;

  /// The caller who was at it has left something under way, and does not assist, or not yet. Needs no lock.
  bool left_busy() const;

  // Likewise, with the mutex held:

  /// The thread has seen the signal.
  void clear_signal();

  /// It is to be looked at from now on.
  void activate();

  /// A turn, unless it is left to a caller. True if anything moved.
  bool turn_if_due(Clock::time_point now, PostUnlockActions& actions);
  bool stays_active(Clock::time_point now);

 private:
  void assume_locked() const P2P_ASSERT_HELD(mutex_) {}
  bool end(const Error& error, bool unless_ready);
  bool busy() const P2P_REQUIRES(mutex_);
  bool has_more() const P2P_REQUIRES(mutex_);
  bool turn(PostUnlockActions& actions, WorkItem* first = nullptr) P2P_REQUIRES(mutex_);
  bool move_on(PostUnlockActions& actions, WorkItem* first) P2P_REQUIRES(mutex_);
  bool progress(PostUnlockActions& actions) P2P_REQUIRES(mutex_);
  bool move_messages(PostUnlockActions& actions) P2P_REQUIRES(mutex_);
  void drop(const Error& error, PostUnlockActions& actions) P2P_REQUIRES(mutex_);
  void notify();
  void leave_to_thread(bool due = false) P2P_REQUIRES(mutex_);
  void report(Status status, PostUnlockActions& actions) P2P_REQUIRES(mutex_);

  Worker& thread_;
  const std::shared_ptr<Worker> keep_thread_;  // for callers who are at it when the endpoint ends
  Mutex& mutex_;                               // the thread's
  const std::shared_ptr<Lane> lane_;
  const Policy& policy_;
  const std::string rail_;
  const std::uint32_t number_;
  const std::shared_ptr<Fence> fence_;
  std::string description_;  // written once, before the lane knows the runner
  bool encrypted_ = false;   // likewise

  const std::unique_ptr<ControlLink> control_;   // outlives the channel
  const std::unique_ptr<MessagePort> messages_;  // likewise; the mutex guards what it points to
  const bool carries_messages_;
  std::unique_ptr<Channel> channel_ P2P_GUARDED_BY(mutex_);  // null once stopped
  std::unique_ptr<Channel> unready_ P2P_GUARDED_BY(mutex_);  // ended in its handshake; closes after `report`
  std::function<void(const Status&)> report_ P2P_GUARDED_BY(mutex_);
  bool ready_ P2P_GUARDED_BY(mutex_) = false;
  bool stopped_ P2P_GUARDED_BY(mutex_) = false;
  int fd_ P2P_GUARDED_BY(mutex_) = -1;            // that the thread watches
  bool disarmed_ P2P_GUARDED_BY(mutex_) = false;  // but not now: it would tell of what a caller sees

  RateEstimator pace_;  // of `batches_`
  BatchPipeline batches_ P2P_GUARDED_BY(mutex_);

  bool active_ P2P_GUARDED_BY(mutex_) = false;  // the thread looks at it again and again
  Clock::time_point moved_at_ P2P_GUARDED_BY(mutex_){};

  std::atomic<bool> signalled_{false};
  std::atomic<bool> due_{false};  // by `signal`, and not looked at since

  // Written with the mutex held; the thread also reads them without.
  std::atomic<int> assists_{0};                 // callers who drive it
  std::atomic<Clock::time_point> called_at_{};  // when a caller last had a turn
  std::atomic<bool> idle_{true};                // not `busy`
};

}  // namespace p2p::engine
