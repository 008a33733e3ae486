// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "drivers/socket/poll_set.h"
#include "drivers/verbs/device.h"
#include "p2p/result.h"
#include "transport/rdma/fabric.h"

namespace p2p::rdma {

/// What a device says of itself while a channel uses one of its ports. A port that goes down may come back
/// for a while.
class DeviceWatch {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr Clock::time_point kNever = Clock::time_point::max();

  /// kUnavailable if the port is down. What the device says makes the poll set, which outlives this,
  /// readable.
  static Result<DeviceWatch> start(std::shared_ptr<verbs::Device> device, const verbs::Port& port,
                                   std::chrono::milliseconds patience, socket::PollSet& polls);

  /// What was said of queue pairs and of the device; of the port `port_deadline` tells. Never blocks.
  std::vector<verbs::Event> take();

  /// By when the port must be up again.
  Clock::time_point port_deadline() const { return port_deadline_; }

  /// Takes no more notice.
  void stop();

 private:
  DeviceWatch(std::shared_ptr<verbs::Device> device, const verbs::Port& port,
              std::chrono::milliseconds patience, socket::PollSet& polls)
      : device_(std::move(device)),
        port_(port.number),
        name_(port.name()),
        patience_(patience),
        polls_(&polls) {}

  std::shared_ptr<verbs::Device> device_;
  unsigned port_;
  std::string name_;
  std::chrono::milliseconds patience_;
  socket::PollSet* polls_;
  std::shared_ptr<verbs::EventWatch> events_;
  Clock::time_point port_deadline_ = kNever;
};

}  // namespace p2p::rdma
