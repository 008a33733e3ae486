// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/loopback/port.h"
#include "transport/transport.h"

namespace p2p::loopback {

/// A path to another endpoint of this process. `post` copies at once; `progress` reports it.
class LoopbackChannel : public Channel {
 public:
  LoopbackChannel(const ChannelSetup& setup, std::shared_ptr<Port> port);
  ~LoopbackChannel() override;

  std::vector<std::byte> address() const override;
  Status connect(std::span<const std::byte> peer_address) override;
  ChannelState state() const override { return state_; }
  Error error() const override { return error_; }
  bool post(const Batch& batch) override;
  bool progress(std::vector<Completion>& completions) override;
  void abandon(BatchId) override {}  // What was posted is already copied.
  int ready_fd() const override { return port_->wake_fd(); }
  bool busy() const override { return !done_.empty(); }
  std::string describe() const override { return "this process"; }

 private:
  Status copy(Operation operation, const Segment& piece) const;

  const ChannelSetup setup_;
  const std::shared_ptr<Port> port_;
  std::shared_ptr<Port> peer_;
  ChannelState state_ = ChannelState::kConnecting;
  Error error_;
  std::vector<Completion> done_;
};

}  // namespace p2p::loopback
