// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "engine/observe/path_history.h"
#include "engine/request/request.h"
#include "engine/schedule/alarm.h"
#include "engine/schedule/item_queue.h"
#include "engine/schedule/policy.h"
#include "engine/schedule/priority_use.h"
#include "engine/schedule/rail_balancer.h"
#include "engine/schedule/runner_list.h"
#include "engine/schedule/stream_wait_queue.h"

namespace p2p::engine {

/// One transport of one connection: the channels that are up and the items that wait for them. Channels
/// pull, so that a slow one carries less. Items take turns, batch by batch, so that a short one does not
/// wait for a long one, and higher classes of priority go first. Of rails of unlike speeds (rail_balancer.h)
/// a slow one leaves the last of the work to others, so that all end at one time. An item whose CUDA stream
/// is still at work waits apart and uses no in-flight slot; the first channel's worker polls the streams.
/// Thread-safe; the mutex is never held while a channel works.
class Lane : public std::enable_shared_from_this<Lane> {
 public:
  /// The end of the last channel leaves a lane open: what waits there goes over those that come, until its
  /// owner closes it or gives it up. `want` is told, on any thread, when there is work and no channel; null:
  /// none can be had. `bulk` is told, on any thread, when a large transfer comes after `watch`. `later` wakes
  /// it for paced requests.
  explicit Lane(const Policy& policy, std::function<void()> want = nullptr,
                std::function<void()> bulk = nullptr, Alarm::Later later = nullptr)
      : policy_(policy), want_(std::move(want)), bulk_(std::move(bulk)), alarm_(std::move(later)) {}

  using Clock = std::chrono::steady_clock;

  const Policy& policy() const { return policy_; }

  /// Takes the work; small work is done on the caller's thread as far as the channels go. The channel on
  /// which it was started, or will be once its dependency is met; null: neither.
  std::shared_ptr<ChannelRunner> submit(WorkItem item, PostUnlockActions& actions);

  /// Has whoever waits for the transfer move it on himself before he sleeps, if it is worth that. `started`:
  /// what `submit` gave. Before the transfer is handed out.
  void let_waiter_assist(TransferState& state, const std::shared_ptr<ChannelRunner>& started);

  /// Takes back what was under way: it goes before what has not begun.
  void return_item(WorkItem item, PostUnlockActions& actions);

  /// Has workers look at items that became aborted, or are due.
  void wake_all();

  /// The connection is over: fails what waits and all that comes, with `error`. The first of this and
  /// `give_up` counts, but that this one counts after that one.
  void close(const Error& error, PostUnlockActions& actions) { refuse_all({error}, actions); }

  /// The transport is: what waits and all that comes, also from its last channels, goes over others.
  void give_up(const Error& why, PostUnlockActions& actions) { refuse_all({why, true}, actions); }

  /// Items that a lost channel gave back.
  std::uint64_t retried() const { return retried_.load(std::memory_order_relaxed); }

  /// Of its channels, those that had been up.
  PathHistory& history() { return history_; }
  const PathHistory& history() const { return history_; }

  /// Items that wait for room in a channel.
  std::size_t queued() const { return queued_.load(); }

  /// The channels that are up now.
  RunnerList runners() const;

  /// So many bytes are worth a look at how they go.
  static constexpr std::uint64_t kBulkBytes = std::uint64_t{256} << 10;

  /// Has `bulk` told of the next large transfer.
  void watch() { watched_.store(true, std::memory_order_relaxed); }

  /// From now on batches are small, and smaller for slow channels, of which there are many.
  void cut_small() { small_.store(true, std::memory_order_relaxed); }

  /// There should be so many, which `describe` tells if there are fewer.
  void expect(std::size_t channels) { expected_.store(channels, std::memory_order_relaxed); }
  std::size_t expected() const { return expected_.load(std::memory_order_relaxed); }
  std::string describe() const;

  /// All channels were lost, and none is up again yet: work waits for them. Needs no lock.
  bool interrupted() const { return interrupted_.load(std::memory_order_relaxed); }

  /// Takes its channels away: they get nothing more, and what comes is told to `want`.
  void forget_runners();

  /// Work waits for a channel.
  bool waits() const;

  bool closed() const {
    MutexLock lock(mutex_);
    return refusal_.has_value();
  }

  // For its runners. One that was never added, or was forgotten, ends without more ado.

  /// The runner's channel is ready, or gone; its items were handed back before that.
  void add(std::shared_ptr<ChannelRunner> runner);
  void remove(const ChannelRunner& runner);

  /// The next item for the runner to send; those of aborted requests are dropped on the way. Nothing, too, if
  /// another one would end it so much sooner that this one had better leave it.
  std::optional<WorkItem> pull(const ChannelRunner& runner, PostUnlockActions& actions);

  /// Its channels were not taken away: what a caller brings along may go by one. Needs no lock.
  bool serves() const { return serves_.load(); }

  /// A runner has enough under way: what waits is for others, of which one is woken.
  void leave(PostUnlockActions& actions) const;

  /// Takes back an item that the runner's channel had no room for, or that a channel lost by `why`.
  void give_back(const ChannelRunner& runner, WorkItem item, PostUnlockActions& actions);
  void retry(WorkItem item, const Error& why, PostUnlockActions& actions);

  /// Queues the items whose dependencies are met, if it is for this runner to poll them. Before it pulls any.
  void admit_ready(const ChannelRunner& runner, PostUnlockActions& actions);
  bool polls_streams(const ChannelRunner& runner) const;

  /// Moves the runners on from a waiting caller's thread until `through`, until nothing has moved for the
  /// spin time, or until the deadline: `runner`, and with `all` the others, too, if they are few.
  void assist(const std::function<bool()>& through, Clock::time_point deadline,
              const std::shared_ptr<ChannelRunner>& runner, bool all) const;

  /// When a caller's thread last moved any of the runners.
  Clock::time_point called_at() const { return called_at_.load(std::memory_order_relaxed); }
  void note_call(Clock::time_point now) { called_at_.store(now, std::memory_order_relaxed); }

 private:
  void refuse_all(const Refusal& refusal, PostUnlockActions& actions);
  std::shared_ptr<ChannelRunner> submit_dependent(WorkItem item, PostUnlockActions& actions);
  void want_channels(PostUnlockActions& actions);
  void note_queued() P2P_REQUIRES(mutex_) { queued_.store(queue_.size()); }
  bool starts_at_once(const WorkItem& item) const P2P_REQUIRES(mutex_);
  RunnerList admit(WorkItem& item, bool may_stay, PostUnlockActions& actions);
  void set_runners(RunnerList runners) P2P_REQUIRES(mutex_);
  void wake_when_due(PostUnlockActions& actions) P2P_REQUIRES(mutex_);
  bool leaves_to_another(const ChannelRunner& runner, Priority priority, PostUnlockActions& actions)
      P2P_REQUIRES(mutex_);
  std::uint64_t most_bytes(const ChannelRunner& runner) const P2P_REQUIRES(mutex_);
  void note_bulk(std::uint64_t bytes, PostUnlockActions& actions);

  const Policy policy_;
  const std::function<void()> want_;
  const std::function<void()> bulk_;
  std::atomic<Clock::time_point> called_at_{};
  std::atomic<std::uint64_t> retried_{0};
  PathHistory history_;
  std::atomic<std::uint32_t> turn_{0};
  std::atomic<std::size_t> expected_{0};
  std::atomic<bool> interrupted_{false};  // written with the mutex held
  std::atomic<bool> serves_{false};       // has runners; likewise
  std::atomic<bool> watched_{false}, small_{false};
  StreamWaitQueue dependent_;

  mutable Mutex mutex_;
  ItemQueue queue_ P2P_GUARDED_BY(mutex_);
  RunnerList runners_ P2P_GUARDED_BY(mutex_);
  std::vector<RunnerLoad> standings_ P2P_GUARDED_BY(mutex_);  // kept for its capacity
  std::optional<Refusal> refusal_ P2P_GUARDED_BY(mutex_);     // closed or given up
  std::atomic<std::size_t> queued_{0};                        // its size; written with the mutex held
  PriorityUse use_ P2P_GUARDED_BY(mutex_);
  Alarm alarm_;                                 // for resting items
  bool wanted_ P2P_GUARDED_BY(mutex_) = false;  // `want` was told, and no channel has come since
  bool rests_ P2P_GUARDED_BY(mutex_) = false;   // its channels were taken away, and none has come since
};

}  // namespace p2p::engine
