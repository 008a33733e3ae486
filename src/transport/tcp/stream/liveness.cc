// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/stream/liveness.h"

#include <algorithm>

#include "base/error.h"
#include "drivers/socket/socket.h"
#include "transport/channel.h"

namespace p2p::tcp {
namespace {

// Looks within the time of silence.
constexpr int kLooks = 4;

}  // namespace

std::chrono::steady_clock::time_point next_look(std::chrono::steady_clock::time_point now,
                                                std::chrono::steady_clock::time_point answered_at,
                                                std::chrono::milliseconds silence) {
  return std::min(now + silence / kLooks, answered_at + silence);
}

void Liveness::sent() {
  if (watching_) return;
  watching_ = true;
  answered_at_ = Clock::now();
  plan_look(answered_at_);
}

void Liveness::plan_look(Clock::time_point now) {
  next_look_ = next_look(now, answered_at_, silence_);
  if (stalls_) next_look_ = std::min(next_look_, now + StallMeter::kLook);
  polls_.set_alarm(next_look_);
}

void Liveness::look_for_stall(Clock::time_point now) {
  const socket::Traffic traffic = socket::traffic_of(fd_);
  stall_.look(now, traffic);
  const PathUse use{.round_trip = traffic.round_trip, .stalled_for = stall_.stalled_for(now)};
  if (use.stalled()) stalls_();
}

Status Liveness::check() {
  if (!watching_) return {};
  const Clock::time_point now = Clock::now();
  if (now < next_look_) return {};
  const Result<socket::Answers> answers = socket::answers_of(fd_);
  if (!answers) return tl::unexpected(answers.error());
  if (answers->awaited) {
    answered_at_ = std::max(answered_at_, now - answers->last);
  } else if (!answers->unsure) {
    answered_at_ = now;
  }
  if (now - answered_at_ >= silence_) {
    return fail(ErrorCode::kPeerGone, "the other host has not answered for {} ms",
                std::chrono::duration_cast<std::chrono::milliseconds>(now - answered_at_).count());
  }
  watching_ = answers->awaited || answers->waiting;
  if (watching_) {
    if (stalls_) look_for_stall(now);
    plan_look(now);
  } else {
    stall_.rest();
    polls_.clear_alarm();
  }
  return {};
}

}  // namespace p2p::tcp
