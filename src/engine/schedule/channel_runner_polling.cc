// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Who looks at a runner, and when: its thread, or the callers who wait.
#include <utility>

#include "base/lock_polling.h"
#include "engine/schedule/channel_runner.h"

namespace p2p::engine {

// Something is under way that no descriptor announces.
bool ChannelRunner::busy() const {
  return more_ || channel_->busy() || (carries_messages_ && messages_->stuck()) ||
         source_->awaits_gates(*this);
}

void ChannelRunner::signal() {
  if (!signalled_.exchange(true)) thread_.signal(shared_from_this());
}

// What the descriptor does not announce is the thread's to poll, which it does by itself while it watches.
void ChannelRunner::leave_to_thread() {
  const bool watching = active_ && policy_.left_to_callers();
  if (channel_ && busy() && !watching) signal();
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
    if (came || (channel_ && carries_messages_ && messages_->pending())) {
      signal();
    } else {
      leave_to_thread();
    }
  }
  mutex_.unlock();
}

bool ChannelRunner::left_to_caller(Clock::time_point now) const {
  // Who assists looks without a pause, unless the system has given his core to another.
  if (!policy_.left_to_callers())
    return now - called_at_.load() < (assists_ != 0 ? Policy::kAbsence : Policy::kReturn);
  return assists_ != 0 || now - (idle_ ? source_->called_at() : called_at_.load()) < policy_.callers_turn;
}

void ChannelRunner::take_signal() {
  assume_locked();
  signalled_.store(false);
  if (!channel_) return;
  called_at_ = Clock::time_point{};
  due_ = true;
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
  if (!std::exchange(due_, false) && left_to_caller(now)) return false;
  if (!channel_ || !turn(actions)) return false;
  moved_at_ = now;
  return true;
}

bool ChannelRunner::stays_active(Clock::time_point now) {
  assume_locked();
  active_ =
      channel_ && (now - moved_at_ < policy_.watch || busy() || (assists_ == 0 && !channel_->arm_events()));
  return active_;
}

}  // namespace p2p::engine
