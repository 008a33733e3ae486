// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/channel_runner.h"

#include <utility>

#include "base/error.h"
#include "base/lock_polling.h"
#include "base/memory_guard.h"
#include "base/relax.h"
#include "engine/schedule/lane.h"
#include "engine/schedule/worker.h"

namespace p2p::engine {

ChannelRunner::ChannelRunner(Worker& thread, std::shared_ptr<Lane> lane, Setup setup)
    : thread_(thread),
      keep_thread_(thread.weak_from_this().lock()),
      mutex_(thread.mutex()),
      lane_(std::move(lane)),
      policy_(lane_->policy()),
      rail_(std::move(setup.rail)),
      number_(setup.number),
      fence_(std::move(setup.fence)),
      control_(std::move(setup.control)),
      messages_(std::move(setup.messages)),
      carries_messages_(messages_ && setup.channel->carries_messages()),
      channel_(std::move(setup.channel)),
      report_(std::move(setup.report)),
      batches_(*this, *lane_, TransferTrace::Way{this, setup.transport, rail_}, pace_) {
  thread_.reserve();
}

Turn ChannelRunner::try_turn(PostUnlockActions& actions, Clock::time_point now, WorkItem* first) {
  if (!mutex_.try_lock()) return Turn::kBusy;
  bool moved = false;
  if (channel_) {
    moved = turn(actions, first);
    called_at_ = now;
    if (moved) lane_->note_call(moved_at_ = now);
    if (assists_ == 0) leave_to_thread();
  }
  mutex_.unlock();
  actions.run();
  return moved ? Turn::kMoved : Turn::kIdle;
}

Turn ChannelRunner::await_turn(PostUnlockActions& actions) {
  for (int looks = Policy::kLooks; looks != 1; --looks) {
    const Turn turn = try_turn(actions);
    if (turn != Turn::kBusy) return turn;
    relax();
  }
  return try_turn(actions);
}

// Memory runs out mostly over what the peer sent: that costs the channel.
bool ChannelRunner::turn(PostUnlockActions& actions, WorkItem* first) {
  bool moved = true;
  const auto work = [&] { assume_locked(), moved = move_on(actions, first); };
  guard_memory("a turn of a channel", work, [&] {
    assume_locked();
    if (!stopped_) drop({ErrorCode::kSystem, fmt::format("move a channel: {}", kOutOfMemory)}, actions);
  });
  return moved;
}

bool ChannelRunner::move_on(PostUnlockActions& actions, WorkItem* first) {
  // What a caller brings to a channel at rest is started before a look at what has come.
  const bool rests = first != nullptr && ready_ && batches_.empty();
  bool moved = !rests && progress(actions);
  batches_.begin_turn();
  if (!ready_ && channel_->state() == ChannelState::kReady) {
    ready_ = moved = true;
    description_ = channel_->describe();
    encrypted_ = channel_->encrypted();
    pace_.set_path(channel_->path_use().round_trip, policy_.most_held);
    lane_->add(shared_from_this());
    report({}, actions);
  }
  if (move_messages(actions)) moved = true;
  if (ready_ && channel_->state() == ChannelState::kReady && batches_.post(*channel_, first, actions)) {
    moved = true;
    if (channel_->busy()) {  // a copy is done when post returns
      if (progress(actions)) batches_.note_room();
      move_messages(actions);
    }
  }
  idle_.store(!busy(), std::memory_order_relaxed);
  if (channel_->state() == ChannelState::kFailed) {
    progress(actions);  // what it gives back goes over others
    drop(channel_->error(), actions);
    return true;
  }
  return moved;
}

bool ChannelRunner::move_messages(PostUnlockActions& actions) {
  return carries_messages_ && messages_->move(*this, *channel_, actions);
}

bool ChannelRunner::progress(PostUnlockActions& actions) {
  const bool moved = batches_.progress(*channel_, actions);
  if (carries_messages_) messages_->tell(actions);
  return moved;
}

void ChannelRunner::report(Status status, PostUnlockActions& actions) {
  if (report_) actions.call([report = report_, status = std::move(status)] { report(status); });
}

Bytes ChannelRunner::address() {
  MutexLock lock(mutex_);
  return channel_ ? channel_->address() : Bytes();
}

Status ChannelRunner::connect(ByteView peer_address) {
  MutexLock lock(mutex_);
  if (!channel_) return fail(ErrorCode::kPeerGone, "connect a channel: it was given up");
  return channel_->connect(peer_address);
}

void ChannelRunner::start() {
  thread_.post([self = shared_from_this()](PostUnlockActions& actions) {
    self->assume_locked();
    if (!self->channel_) return;  // stopped before it came here
    const int fd = self->channel_->ready_fd();
    if (const Status added = self->thread_.add(self, fd); !added) return self->drop(added.error(), actions);
    self->fd_ = fd;
    self->activate();
  });
}

bool ChannelRunner::end(const Error& error, bool unless_ready) {
  PostUnlockActions actions;
  {
    MutexLock lock(mutex_);
    if (unless_ready && ready_ && !stopped_) return false;
    if (!stopped_) drop(error, actions);
  }
  actions.run();
  return true;
}

void ChannelRunner::drop(const Error& error, PostUnlockActions& actions) {
  stopped_ = true;
  const auto self = shared_from_this();
  thread_.remove(*this, std::exchange(fd_, -1));
  const Error own = channel_ ? channel_->error() : error;  // where it was about to fail by itself
  LeavesPeer::Left left;
  auto* const leaver = fence_ ? dynamic_cast<LeavesPeer*>(channel_.get()) : nullptr;
  if (leaver != nullptr) left = leaver->leave();
  if (!ready_) unready_ = std::move(channel_);
  channel_.reset();
  batches_.fail_all(error, std::move(left), fence_, actions);
  lane_->remove(*this);
  report(tl::unexpected(own.message.empty() ? error : own), actions);
}

std::optional<ChannelRunner::Clock::time_point> ChannelRunner::quiet_since() {
  MutexLock lock(mutex_);
  const bool quiet = ready_ && !stopped_ && assists_ == 0 && !busy() && batches_.empty() && channel_->quiet();
  return quiet ? std::optional(moved_at_) : std::nullopt;
}

PathUse ChannelRunner::path_use() {
  MutexLock lock(mutex_);
  return ready_ && !stopped_ ? channel_->path_use() : PathUse();
}

bool ChannelRunner::heard_within(std::chrono::milliseconds time) {
  MutexLock lock(mutex_);
  return ready_ && !stopped_ && channel_->heard_within(time);
}

void ChannelRunner::mute() {
  MutexLock lock(mutex_);
  report_ = nullptr;
}

void ChannelRunner::tell(std::function<Status(Channel&)> call) {
  thread_.post([self = shared_from_this(), call = std::move(call)](PostUnlockActions& actions) {
    self->assume_locked();
    if (!self->channel_) return;
    const Status done = call(*self->channel_);
    done ? self->activate() : self->drop(done.error(), actions);
  });
}

void ChannelRunner::abandon(std::shared_ptr<TransferState> state) {
  thread_.post([self = shared_from_this(), state = std::move(state)](PostUnlockActions& /*actions*/) {
    self->assume_locked();
    if (!self->channel_) return;
    self->batches_.abandon(state, *self->channel_);
    self->activate();
  });
}

void ChannelRunner::rejoin() {
  MutexLock lock(mutex_);
  if (ready_ && !stopped_) lane_->add(shared_from_this());
}

// Something is under way that no descriptor announces.
bool ChannelRunner::busy() const { return has_more() || channel_->busy(); }

// There is more to do at once.
bool ChannelRunner::has_more() const {
  return batches_.has_more() || (carries_messages_ && messages_->stuck()) || lane_->polls_streams(*this);
}

void ChannelRunner::signal() {
  due_ = true;
  notify();
}

void ChannelRunner::notify() {
  if (!signalled_.exchange(true)) thread_.signal(shared_from_this());
}

// What the descriptor does not announce is the thread's to poll, which it does by itself while it watches.
// The caller who began a copy may be about to wait for it, and then polls himself.
void ChannelRunner::leave_to_thread(bool due) {
  const bool watching = active_ && policy_.left_to_callers();
  if (due || (channel_ && has_more() && !watching)) {
    signal();
  } else if (channel_ && channel_->busy() && !watching) {
    notify();
  }
}

bool ChannelRunner::begin_assist() {
  if (!mutex_.try_lock()) return false;
  if (assists_++ == 0) {
    disarmed_ = channel_ && !channel_->enter_polling() && fd_ >= 0;
    if (disarmed_) thread_.arm(*this, fd_, false);
  }
  mutex_.unlock();
  return true;
}

void ChannelRunner::end_assist() {
  lock_polling(mutex_);
  if (--assists_ == 0) {
    if (std::exchange(disarmed_, false) && fd_ >= 0) thread_.arm(*this, fd_, true);
    const bool came = channel_ && !active_ && !channel_->arm_events();
    leave_to_thread(came || (channel_ && carries_messages_ && messages_->pending()));
  }
  mutex_.unlock();
}

bool ChannelRunner::left_to_caller(Clock::time_point now) const {
  // Who assists looks without a pause, unless the system has given his core to another.
  if (!policy_.left_to_callers())
    return now - called_at_.load() < (assists_ != 0 ? Policy::kAbsence : Policy::kReturn);
  return assists_ != 0 || now - (idle_ ? lane_->called_at() : called_at_.load()) < policy_.callers_turn;
}

bool ChannelRunner::left_busy() const { return !policy_.left_to_callers() && assists_ == 0 && !idle_; }

void ChannelRunner::clear_signal() {
  assume_locked();
  signalled_.store(false);
  if (!channel_) return;
  if (due_) called_at_ = Clock::time_point{};
  activate();
}

void ChannelRunner::activate() {
  assume_locked();
  moved_at_ = Clock::now();
  if (std::exchange(active_, true)) return;
  if (channel_) channel_->enter_polling();
  thread_.look_at(shared_from_this());
}

bool ChannelRunner::turn_if_due(Clock::time_point now, PostUnlockActions& actions) {
  assume_locked();
  if (!due_.exchange(false) && left_to_caller(now)) return false;
  if (!channel_ || !turn(actions)) return false;
  moved_at_ = now;
  return true;
}

bool ChannelRunner::stays_active(Clock::time_point now) {
  assume_locked();
  const bool at_work = channel_ && (now - moved_at_ < policy_.watch || busy());
  return active_ = at_work || (channel_ && assists_ == 0 && !channel_->arm_events());
}

}  // namespace p2p::engine
