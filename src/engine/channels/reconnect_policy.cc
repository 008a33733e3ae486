// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/channels/reconnect_policy.h"

#include <algorithm>

namespace p2p::engine {
namespace {

constexpr std::chrono::milliseconds kLeastPause{50};
constexpr std::chrono::milliseconds kMostPause{1000};
constexpr std::chrono::seconds kAttempt{2};

/// One that stayed for so long is not the cause of its end.
constexpr std::chrono::seconds kStayed{10};

// Parts of the patience: a pause at most, an attempt at least.
constexpr int kPausePart = 8;
constexpr int kAttemptPart = 4;

ReconnectPolicy::Clock::duration pause_after(unsigned failures) {
  return std::min(kMostPause, kLeastPause * (1U << std::min(failures, 8U)));
}

}  // namespace

// Each as long as those before it together, so that a slow path gets half of the time: a quarter, a quarter,
// a half.
ReconnectPolicy::Clock::duration ReconnectPolicy::longest() const {
  if (!pressed_) return kAttempt;
  return std::min<Clock::duration>(kAttempt,
                                   std::max(patience_ / kAttemptPart, std::min(spent_, patience_ - spent_)));
}

ReconnectPolicy::Clock::time_point ReconnectPolicy::fail(Clock::time_point now) {
  if (up_at_ && now - *up_at_ >= kStayed) failures_ = 0;
  // A process that stood still does not pay for the time.
  const auto took = begun_at_ ? std::min(now - *begun_at_, longest()) : Clock::duration(0);
  begun_at_.reset();
  up_at_.reset();
  Clock::duration pause = pause_after(failures_++);
  if (pressed_) {
    pause = std::max(std::min(pause, patience_ / kPausePart) - took, Clock::duration(0));
    spent_ += took + pause;
  }
  return now + pause;
}

ReconnectPolicy::Clock::time_point ReconnectPolicy::begin(Clock::time_point now) {
  begun_at_ = now;
  return now + longest();
}

void ReconnectPolicy::succeed(Clock::time_point now) {
  begun_at_.reset();
  up_at_ = now;
}

ReconnectPolicy::Clock::time_point ReconnectPolicy::press(Clock::time_point now, Clock::time_point due) {
  pressed_ = true;
  spent_ = Clock::duration(0);
  return std::min(due, now + (begun_at_ ? longest() : patience_ / kPausePart));
}

}  // namespace p2p::engine
