// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/channels/path_meter.h"

#include <algorithm>
#include <utility>

#include "engine/schedule/lane.h"

namespace p2p::engine {

void PathMeter::begin() {
  filled_ = fills_path();
  before_ = std::exchange(now_, {});
  round_trips_.clear();
  flying_ = 0;
  moving_ = bound_ = full_ = 0;
}

void PathMeter::look_at(ChannelRunner& runner, bool ready) {
  flying_ += runner.pace().flying();
  if (!ready) return;
  const PathUse use = runner.path_use();
  if (use.round_trip.count() != 0) {
    auto& least = round_trips_.try_emplace(runner.rail(), use.round_trip).first->second;
    least = std::min(least, use.round_trip);
  }
  const Used before = before_[runner.number()];
  now_[runner.number()] = {use.sent, use.received};
  if (use.sent < before.sent || use.received < before.received) return;  // it has just ended
  const std::uint64_t sent = use.sent - before.sent;
  const std::uint64_t received = use.received - before.received;
  moved_ += sent + received;
  if (sent + received == 0) return;
  ++moving_;
  if (use.fills_path) ++full_;
  if (sent >= received ? use.send_waits : !use.unread) ++bound_;
}

void PathMeter::tell(ChannelTraffic& traffic) const {
  for (const auto& [rail, least] : round_trips_) traffic.round_trip = std::max(traffic.round_trip, least);
  traffic.busy = flying_ >= Lane::kBulkBytes;
  traffic.moved = moved_;
  traffic.path_bound = 2 * bound_ > moving_;
  traffic.fills_path = fills_path();
}

}  // namespace p2p::engine
