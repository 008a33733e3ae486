// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/channels/growth_trial.h"

#include <algorithm>
#include <utility>

namespace p2p::engine {
namespace {

/// Rates that must be known before a trial; the best of them is what more streams have to beat.
constexpr unsigned kRatesBefore = 2;

/// Looks before which the added ones come up to their speed.
constexpr unsigned kLooksToSpeed = 1;

/// Looks within which the gain must show.
constexpr unsigned kMostLooks = 4;

/// Looks at which less than half of the rate before shows that there was little to do, and nothing else.
constexpr unsigned kMostPauses = 20;

/// A look that comes so late tells of another time.
constexpr auto kLate = 3 * GrowthTrial::kLook;

/// While threads are the bound, which more streams would not change.
constexpr std::chrono::milliseconds kThreadBound{1000};

/// The least gain: a third of what the added streams would carry if each had what those before had.
double least_gain(std::size_t before, std::size_t added) {
  return 1 + static_cast<double>(added) / static_cast<double>(3 * before);
}

}  // namespace

std::optional<double> GrowthTrial::rate_since_last(const Look& look) {
  const auto since = std::exchange(last_at_, look.now);
  const std::uint64_t moved = look.moved - std::exchange(last_moved_, look.moved);
  if (!since || look.now - *since > kLate || look.now - *since < kLook / 2) return std::nullopt;
  return static_cast<double>(moved) / std::chrono::duration<double>(look.now - *since).count();
}

GrowthTrial::Step GrowthTrial::look(const Look& look) {
  const auto rate = rate_since_last(look);
  if (!trial_) {
    if (hold_until_ && look.now < *hold_until_) return {.next = *hold_until_};
    if (!look.path_bound) {
      looks_ = 0;
      best_ = 0;
      return {.next = look.now + kThreadBound};
    }
  }
  const Step wait{.next = look.now + kLook};
  if (!rate || !look.settled) return wait;
  if (trial_) return judge(look, *rate);
  best_ = std::max(best_, *rate);
  if (++looks_ < kRatesBefore || look.may_come == 0 || look.up == 0) return wait;
  return begin(look, best_, true);
}

GrowthTrial::Step GrowthTrial::begin(const Look& look, double rate, bool first) {
  trial_ = Trial{.before = look.up, .rate = rate, .first = first};
  return {.next = look.now + kLook, .add = std::min(look.up, look.may_come)};
}

// Before the first gain is believed, it must show twice: what else runs on a machine comes and goes.
GrowthTrial::Step GrowthTrial::judge(const Look& look, double rate) {
  Trial& trial = *trial_;
  if (look.up <= trial.before) {  // none came up
    hold(look.now + kHoldAfterNothing);
    return {.next = *hold_until_};
  }
  if (rate < trial.rate / 2 && trial.pauses++ < kMostPauses) return {.next = look.now + kLook};
  if (trial.looks++ < kLooksToSpeed) return {.next = look.now + kLook};
  const std::size_t added = look.up - trial.before;
  if (rate >= trial.rate * least_gain(trial.before, added)) ++trial.gains;
  if (trial.gains == (trial.first ? 2 : 1)) {
    if (look.may_come == 0) {
      trial_.reset();
      return {.next = look.now + kLook, .gained = true};
    }
    Step next = begin(look, rate, false);
    next.gained = true;
    return next;
  }
  if (trial.looks < kMostLooks) return {.next = look.now + kLook};
  hold(look.now + kHoldAfterNoGain);
  return {.next = *hold_until_, .give_back = added};
}

std::size_t GrowthTrial::stop(Clock::time_point now, std::size_t up) {
  last_at_.reset();
  looks_ = 0;
  best_ = 0;
  if (!trial_) return 0;
  const std::size_t before = trial_->before;
  hold(now + (trial_->first ? kHoldAfterNothing : kHoldAfterGain));
  return up > before ? up - before : 0;
}

void GrowthTrial::hold(Clock::time_point until) {
  hold_until_ = until;
  trial_.reset();
  looks_ = 0;
  best_ = 0;
}

}  // namespace p2p::engine
