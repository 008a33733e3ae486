// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/channels/channel_plan.h"
#include "engine/channels/context.h"
#include "engine/memory/fence.h"
#include "engine/schedule/channel_runner.h"
#include "engine/schedule/lane.h"
#include "engine/session/session.h"

namespace p2p::engine {

/// Makes the channels of one transport of one connection, and the lane that they serve: how many there may
/// be, by which rail each goes, and all that one is told. Not thread-safe.
class ChannelMaker {
 public:
  struct Setup {
    std::shared_ptr<Context> context;
    std::size_t transport = 0;  ///< its index
    Role role = Role::kConnector;
    SessionPeer peer;
    std::vector<std::string> transports;  ///< that both sides have
    SendMessage send;
    MakeMessagePort make_message_port;
    std::shared_ptr<Fence> fence;

    /// Is told when a channel is up or has failed; on any thread.
    std::function<void(std::uint32_t channel, const Status&)> report;

    /// Are told when the lane has work for channels that are idle, and when it has much; on any thread.
    std::function<void()> want;
    std::function<void()> bulk;
  };

  explicit ChannelMaker(Setup setup);

  const Transport& transport() const { return *setup_.context->transports()[setup_.transport].transport; }
  Role role() const { return setup_.role; }
  const Options& options() const { return setup_.context->options; }
  const SendMessage& send() const { return setup_.send; }
  const std::shared_ptr<Lane>& lane() const { return lane_; }

  /// What there may be, at most so many: those that are opened without being asked for, then the surplus
  /// ones, which the rails have in turns.
  std::vector<ChannelKind> plan(std::size_t most);

  /// The same for a peer that has offered these: each as the peer keeps it, as far as there is one for it.
  std::vector<ChannelKind> plan_for(const std::vector<Bytes>& offered);

  /// One of those that were planned, by its number on the wire.
  Result<std::shared_ptr<ChannelRunner>> make(std::uint32_t number) const;

  /// The rail of the planned one with this index.
  const std::string& rail(std::size_t index) const { return rails_[index].name; }

  /// The session has another path: unless the application named interfaces, channels that are made from now
  /// on take that one.
  void moved(const PeerPath& path);

 private:
  Setup setup_;
  const std::shared_ptr<Lane> lane_;
  std::vector<Rail> rails_;       // by the index of a channel
  std::function<void()> stalls_;  // null: of one rail
};

}  // namespace p2p::engine
