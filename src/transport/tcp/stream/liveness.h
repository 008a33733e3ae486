// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <utility>

#include "drivers/socket/poll_set.h"
#include "p2p/result.h"
#include "transport/tcp/stream/stall_meter.h"

namespace p2p::tcp {

/// When to look again whether bytes that nothing has answered since `answered_at` are: a few times within the
/// time of silence, and when it is over.
std::chrono::steady_clock::time_point next_look(std::chrono::steady_clock::time_point now,
                                                std::chrono::steady_clock::time_point answered_at,
                                                std::chrono::milliseconds silence);

/// Whether the host at the other end of a stream still answers while bytes are on their way there. It is its
/// kernel that answers: a peer that does not take its bytes, since it is slow or stopped, is alive. While
/// nothing is on its way the kernel's keepalive watches. Uses the poll set's alarm. With `stalls` it also
/// looks whether what is sent stands still, and says so long before the time of silence is over
/// (ChannelSetup).
class Liveness {
 public:
  Liveness(socket::PollSet& polls, std::chrono::milliseconds silence, std::function<void()> stalls = nullptr)
      : polls_(polls), silence_(silence), stalls_(std::move(stalls)) {}

  void start(int fd) { fd_ = fd; }

  /// Bytes have left.
  void sent();

  /// kPeerGone if nothing has answered them for the time of silence. Cheap while no look is due.
  Status check();

  /// As of PathUse.
  std::chrono::milliseconds stalled_for() const { return stall_.stalled_for(Clock::now()); }

 private:
  using Clock = std::chrono::steady_clock;

  void plan_look(Clock::time_point now);
  void look_for_stall(Clock::time_point now);

  socket::PollSet& polls_;
  const std::chrono::milliseconds silence_;
  const std::function<void()> stalls_;
  StallMeter stall_;
  int fd_ = -1;
  bool watching_ = false;
  Clock::time_point next_look_;
  Clock::time_point answered_at_;  // or when there was nothing to answer
};

}  // namespace p2p::tcp
