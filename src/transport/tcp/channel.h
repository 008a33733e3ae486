// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/own_pages.h"
#include "device/staging.h"
#include "drivers/socket/poll_set.h"
#include "drivers/socket/round_trip.h"
#include "drivers/socket/socket.h"
#include "drivers/socket/stream.h"
#include "transport/close_handshake.h"
#include "transport/tcp/backlog.h"
#include "transport/tcp/connect/connecting.h"
#include "transport/tcp/requests/peer_requests.h"
#include "transport/tcp/requests/read_requests.h"
#include "transport/tcp/staging/device_departures.h"
#include "transport/tcp/stream/liveness.h"
#include "transport/tcp/stream/receiver.h"
#include "transport/tcp/stream/sender.h"
#include "transport/transport.h"

namespace p2p::tcp {

/// What the transport gives to each of its channels.
struct ChannelConfig {
  std::shared_ptr<const RegistrationTable> registrations;
  std::chrono::milliseconds connect_timeout{10000};
  std::chrono::milliseconds keepalive{3000};
  std::size_t zerocopy_bytes = 0;
  std::shared_ptr<device::StagingPool> staging;
  bool stages = true;  ///< device memory is expected to take this stream
};

/// One TCP stream: its life, and which of its parts a batch or frame is for. Connects (connecting.h), then
/// sends (sender.h) and receives (receiver.h). My writes are the sender's, my reads of read_requests.h, what
/// the peer asks of peer_requests.h.
///
/// A stream that is lost ends its batches once the peer's end is shut, too: what lies unread there would land
/// after a batch that was sent again over another stream. Belongs to one worker.
class StreamChannel final : public Channel, public OnOwnPages, private FrameHandler {
 public:
  static Result<std::unique_ptr<Channel>> open(const ChannelSetup& setup, ChannelConfig config);
  ~StreamChannel() override;

  std::vector<std::byte> address() const override { return address_; }
  Status connect(std::span<const std::byte> peer_address) override;
  ChannelState state() const override;
  Error error() const override { return error_; }
  bool post(const Batch& batch) override;
  bool progress(std::vector<Completion>& completions) override;
  void abandon(BatchId id) override;
  int ready_fd() const override { return polls_.fd(); }
  bool busy() const override;
  bool quiet() const override {
    return phase_ == Phase::kReady && !busy() && !sender_.pending() && sender_.peer_reads() == 0 &&
           !receiver_.in_frame();
  }
  Status on_control(std::span<const std::byte> message) override;
  bool carries_messages() const override { return true; }
  bool say(std::span<const std::byte> block) override;
  PathUse path_use() const override;
  void give_up(const Error& why) override { lose(why); }
  bool heard_within(std::chrono::milliseconds time) const override {
    return stream_ && socket::heard_within(stream_->fd(), time);
  }
  void probe() override;
  bool enter_polling() override;
  bool arm_events() override;
  bool encrypted() const override { return stream_ && stream_->encrypted(); }
  std::string describe() const override { return description_; }

 private:
  enum class Phase : std::uint8_t {
    kConnecting,
    kReady,
    kClosing,  ///< lost; waits until the peer's end is shut as well
    kFailed,
  };

  StreamChannel(const ChannelSetup& setup, ChannelConfig config, socket::PollSet polls);

  bool connect_further();
  Status become_ready(std::unique_ptr<socket::Stream> stream);
  bool move_bytes();
  Result<bool> flush();
  void watch();
  void lose(const Error& why);
  void finish();

  Status begin_frame(const FrameHeader& header, ByteView descriptors, Landing& landing) override;
  Status end_frame(const FrameHeader& header, const Landing& landing) override;

  const ChannelSetup setup_;
  const ChannelConfig config_;
  socket::PollSet polls_;
  std::optional<Connecting> connecting_;  // until it is ready or has failed
  std::vector<std::byte> address_;

  Phase phase_ = Phase::kConnecting;
  Error error_;
  CloseHandshake close_handshake_;
  std::unique_ptr<socket::Stream> stream_;
  Liveness liveness_;
  Backlog backlog_;
  bool watching_output_ = false;
  bool polled_ = false;  // nobody sleeps on `polls_`
  std::string description_;

  std::vector<Completion> completions_;
  const std::shared_ptr<device::Staging> staging_;
  Sender sender_;
  Receiver receiver_;
  DeviceDepartures departures_;
  ReadRequests reads_;
  PeerRequests peer_;
};

}  // namespace p2p::tcp
