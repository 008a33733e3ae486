// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "drivers/socket/poll_set.h"
#include "transport/close_handshake.h"
#include "transport/nccl_net/channel_config.h"
#include "transport/nccl_net/comm_handshake.h"
#include "transport/nccl_net/incoming.h"
#include "transport/nccl_net/message_sender.h"
#include "transport/nccl_net/outgoing.h"
#include "transport/nccl_net/own_batches.h"
#include "transport/nccl_net/peer_batches.h"
#include "transport/nccl_net/peer_watch.h"
#include "transport/transport.h"

namespace p2p::nccl_net {

/// A comm in each direction: CommHandshake connects them, Outgoing and Incoming move the bytes, OwnBatches
/// and PeerBatches say which. A batch of a lost channel may be sent again over
/// another one, so it ends once the peer has closed its comms as well. The channel is its state, and brings
/// each message to whom it concerns. Belongs to one worker.
class NetChannel final : public Channel {
 public:
  static Result<std::unique_ptr<Channel>> open(const ChannelSetup& setup, ChannelConfig config);
  ~NetChannel() override;

  std::vector<std::byte> address() const override { return handshake_.address().encode(); }
  Status connect(std::span<const std::byte> peer_address) override;
  ChannelState state() const override;
  Error error() const override { return error_; }
  bool post(const Batch& batch) override;
  bool progress(std::vector<Completion>& completions) override;
  void abandon(BatchId id) override;
  int ready_fd() const override { return polls_.fd(); }
  bool busy() const override;
  Status on_control(std::span<const std::byte> message) override;
  bool heard_within(std::chrono::milliseconds time) const override { return watch_.heard_within(time); }
  std::string describe() const override;

 private:
  using Clock = PeerWatch::Clock;

  enum class Phase : std::uint8_t {
    kConnecting,
    kReady,
    kClosing,  ///< the comms are closed; waits until the peer's are, too
    kFailed,
  };

  NetChannel(const ChannelSetup& setup, ChannelConfig config, socket::PollSet polls, Listener listener);

  IncomingHandler handler();
  Result<bool> connect_further();
  Result<bool> move();
  void close_comms();
  void lose(const Error& why);
  void finish();

  Status take_control(std::span<const std::byte> message);
  Status take_early_or_now(Message message);
  Status take(Message message);
  Status take(Chunk chunk);

  const ChannelSetup setup_;
  const ChannelConfig config_;
  std::optional<OnDevice> at_the_end_;  // while what stands below goes, its listener too
  socket::PollSet polls_;
  MessageSender messages_;
  CloseHandshake close_handshake_;
  PeerWatch watch_;
  OwnBatches own_;
  PeerBatches peers_;
  CommHandshake handshake_;
  std::optional<Outgoing> outgoing_;  ///< both while it is ready
  std::optional<Incoming> incoming_;

  Phase phase_ = Phase::kConnecting;
  Error error_;
  std::vector<Message> early_;  // from a peer that was ready before us
};

}  // namespace p2p::nccl_net
