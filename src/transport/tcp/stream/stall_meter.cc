// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/stream/stall_meter.h"

#include <algorithm>
#include <utility>

namespace p2p::tcp {
namespace {

constexpr double kSmallPart = 1.0 / 8;

// With less to send there is no telling how fast it could be.
constexpr std::uint64_t kMuch = std::uint64_t{64} << 10;

// The best rate so far loses so much of itself from look to look: what stays slow becomes the usual in
// seconds.
constexpr double kForgets = 1.0 / 16;

}  // namespace

void StallMeter::look(Clock::time_point now, const socket::Traffic& traffic) {
  if (now - looked_at_ < std::max<Clock::duration>(kLook / 2, 2 * traffic.round_trip)) return;
  const auto last = std::exchange(looked_at_, now);
  const socket::Traffic before = std::exchange(before_, traffic);
  if (last == Clock::time_point{}) return;
  const std::uint64_t moved = traffic.acknowledged - before.acknowledged;
  const std::uint64_t waited = before.in_flight + before.unsent;
  if (moved >= waited) {  // there was not always something to send
    since_ = {};
    return;
  }
  const double rate = static_cast<double>(moved) / std::chrono::duration<double>(now - last).count();
  const bool held_by_path = moved < before.in_flight;
  const bool held_by_peer = !held_by_path && traffic.unsent != 0 && traffic.window_full();
  const bool slow = waited >= kMuch && !held_by_peer && rate < usual_ * kSmallPart;
  const bool stands = moved == 0 ? held_by_path && traffic.in_flight != 0 : slow;
  usual_ = std::max(rate, usual_ * (1 - kForgets));
  if (!stands) {
    since_ = {};
  } else if (since_ == Clock::time_point{}) {
    since_ = last;
  }
}

void StallMeter::rest() {
  looked_at_ = {};
  since_ = {};
}

std::chrono::milliseconds StallMeter::stalled_for(Clock::time_point now) const {
  if (since_ == Clock::time_point{}) return {};
  return std::chrono::ceil<std::chrono::milliseconds>(now - since_);
}

}  // namespace p2p::tcp
