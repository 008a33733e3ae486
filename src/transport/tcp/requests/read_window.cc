// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/requests/read_window.h"

#include <algorithm>

namespace p2p::tcp {
namespace {

// A stream that brings all it is asked for within one round trip could bring more, and is asked for so many
// times as much, which is ahead of TCP's own slow start. Of a stream that the path holds up three quarters
// wait at the peer.
constexpr double kRoundTrips = 4;

// The rate is taken over so many: answers come in heaps.
constexpr int kSpan = 2;

// A lost packet holds up all behind it for a round trip or more, which says nothing of the path.
constexpr double kKept = 0.75;

}  // namespace

void ReadWindow::begin(Clock::time_point now) {
  from_ = now;
  arrived_ = 0;
}

void ReadWindow::ended(std::uint64_t bytes, Clock::time_point now) {
  arrived_ += bytes;
  if (now - from_ < kSpan * round_trip_) return;
  const std::chrono::duration<double> span = now - from_;
  rate_ = std::max(static_cast<double>(arrived_) / span.count(), rate_ * kKept);
  const std::chrono::duration<double> time = round_trip_ * kRoundTrips;
  bytes_ = std::clamp(static_cast<std::uint64_t>(rate_ * time.count()), kLeast, kMost);
  begin(now);
}

}  // namespace p2p::tcp
