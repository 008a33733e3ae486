// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/loop/liveness_monitor.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace p2p::engine {
namespace {

/// A machine that is silent for a third of its time, but for no less than this, at two beats, is dark: a
/// middlebox may have forgotten the connection.
constexpr std::chrono::milliseconds kDark{500};

constexpr int kDarkBeats = 2;

LivenessMonitor::Milliseconds rounded(LivenessMonitor::Clock::duration time) {
  return std::chrono::duration_cast<LivenessMonitor::Milliseconds>(time);
}

}  // namespace

LivenessMonitor::LivenessMonitor(Limits limits, Clock::time_point now)
    : limits_(std::move(limits)),
      machine_(now, 2 * limits_.beat),
      silence_(now, 2 * limits_.beat),
      congestion_(now, 2 * limits_.beat) {}

bool LivenessMonitor::heard_elsewhere(Clock::duration within) const {
  return limits_.heard_elsewhere && limits_.heard_elsewhere(rounded(within));
}

bool LivenessMonitor::is_dark(const socket::Answers& answers, bool redials) {
  if (!redials || answers.unsure) return false;
  const bool dark = answers.awaited && answers.last >= std::max<Clock::duration>(limits_.machine / 3, kDark);
  dark_beats_ = dark ? dark_beats_ + 1 : 0;
  return dark_beats_ >= kDarkBeats;
}

LivenessMonitor::Verdict LivenessMonitor::judge(Clock::time_point now, const socket::Answers& answers,
                                                bool redials) {
  if (is_dark(answers, redials)) return {State::kDark, Sign::kMachine, answers.last};
  const auto lately = limits_.machine / 2;
  const bool awaited = answers.awaited && !(answers.last >= lately && heard_elsewhere(lately));
  // At two beats, for what is awaited may have left only now, after a time in which nothing did.
  const bool doubtful = answers.unsure ? doubted_ : awaited && answers.last >= limits_.machine - limits_.beat;
  if (std::exchange(doubted_, doubtful) && doubtful && awaited && answers.last >= limits_.machine) {
    return {State::kGone, Sign::kMachine, answers.last};
  }
  const auto silence = silence_.tick(now);
  const auto congestion = congestion_.tick(now);
  if (silence >= limits_.peer) return {State::kGone, Sign::kSilence, rounded(limits_.peer)};
  if (congestion >= limits_.peer) return {State::kGone, Sign::kCongestion, rounded(limits_.peer)};
  const auto still = std::max(silence, congestion);
  if (still < limits_.machine) return {};
  return {State::kSlow, silence >= congestion ? Sign::kSilence : Sign::kCongestion, rounded(still)};
}

LivenessMonitor::Verdict LivenessMonitor::judge(Clock::time_point now) {
  if (heard_elsewhere(2 * limits_.beat)) machine_.moved(now);
  const auto dark = machine_.tick(now);
  if (dark >= limits_.machine) return {State::kGone, Sign::kMachine, rounded(dark)};
  const auto silence = silence_.tick(now);
  if (silence >= limits_.peer) return {State::kGone, Sign::kSilence, rounded(limits_.peer)};
  return {};
}

bool LivenessMonitor::is_path_dark(Clock::time_point now, const socket::Answers& answers) {
  if (!(answers.awaited || answers.unsure) || answers.last < 2 * limits_.beat) {
    machine_.moved(now);
    return false;
  }
  return answers.awaited;
}

Error gone(const LivenessMonitor::Verdict& verdict) {
  const auto ms = verdict.still.count();
  const auto why = [&]() -> std::string {
    switch (verdict.sign) {
      case LivenessMonitor::Sign::kMachine: return fmt::format("its machine was not heard of for {} ms", ms);
      case LivenessMonitor::Sign::kSilence:
        return fmt::format("not heard of for {} ms, though its machine answers", ms);
      case LivenessMonitor::Sign::kCongestion: break;
    }
    return fmt::format("took nothing that it was sent for {} ms", ms);
  };
  return {ErrorCode::kPeerGone, why()};
}

}  // namespace p2p::engine
