// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "drivers/socket/poll_set.h"
#include "transport/tcp/descriptors.h"
#include "transport/tcp/device_path.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp/receiver.h"
#include "transport/tcp/sender.h"
#include "transport/transport.h"

namespace p2p::tcp {

/// What the transport gives to each of its channels.
struct ChannelConfig {
  std::shared_ptr<const RegistrationTable> registrations;
  std::chrono::milliseconds connect_timeout{10000};
  std::chrono::milliseconds keepalive{3000};
  std::size_t zerocopy_bytes = 0;
  std::shared_ptr<device::StagingPool> staging;
};

/// One TCP stream. Connects (handshake.h), then sends (sender.h) and receives (receiver.h); this file decides
/// what frames mean. Belongs to one worker.
class StreamChannel final : public Channel, private FrameHandler {
 public:
  static Result<std::unique_ptr<Channel>> open(const ChannelSetup& setup, ChannelConfig config);
  ~StreamChannel() override;

  std::vector<std::byte> address() const override { return address_.encode(); }
  Status connect(std::span<const std::byte> peer_address) override;
  ChannelState state() const override { return state_; }
  Error error() const override { return error_; }
  bool post(const Batch& batch) override;
  bool progress(std::vector<Completion>& completions) override;
  void abandon(BatchId id) override;
  int ready_fd() const override { return polls_.fd(); }
  bool busy() const override;
  std::string describe() const override;

 private:
  /// A read of mine until its end has come. The batch is empty once abandoned.
  struct Read {
    std::uint64_t number = 0;
    Batch batch;
    bool abandoned = false;
    bool landed = false;

    // Of a read into device memory:
    DevicePath::Slot* slot = nullptr;
    bool ended = false;  // and its outcome is told once the slot is unpacked
    Status outcome;
  };

  /// A peer's write to device memory whose payload is coming.
  struct Arrival {
    DevicePath::Slot* slot = nullptr;
    StagedMemory memory;
  };

  StreamChannel(const ChannelSetup& setup, ChannelConfig config, socket::PollSet polls,
                ChannelAddress address);

  bool advance_handshake();
  Status become_ready(UniqueFd fd);
  bool move_bytes();
  void watch_output();
  void lose(const Error& why);

  bool post_read(const Batch& batch);
  Status settle_writes();
  bool settle_reads();
  Read* find_read(std::uint64_t number);

  Status begin_frame(const FrameHeader& header, ByteView descriptors, Landing& landing) override;
  Status end_frame(const FrameHeader& header, const Landing& landing) override;
  Status begin_write(const FrameHeader& header, ByteView descriptors, Landing& landing);
  Status begin_response(const FrameHeader& header, Landing& landing);
  Status serve_read(const FrameHeader& header, ByteView descriptors);
  Status end_read(const FrameHeader& header, ByteView reason);
  Status resolve(Landing& landing);
  bool resolved_to_device() const;
  StagedMemory stage(Landing& landing) const;
  Status write_ended(const Status& outcome, std::uint64_t bytes);

  ChannelSetup setup_;
  ChannelConfig config_;
  socket::PollSet polls_;
  ChannelAddress address_;
  std::optional<Acceptor> acceptor_;
  std::optional<Dialer> dialer_;
  Clock::time_point deadline_;

  ChannelState state_ = ChannelState::kConnecting;
  Error error_;
  UniqueFd fd_;
  bool watching_output_ = false;
  std::string description_;

  std::vector<Completion> completions_;
  Sender sender_;
  Receiver receiver_;
  DevicePath device_;
  std::optional<Arrival> arrival_;
  RangeList ranges_;                 // of the frame that has just begun
  std::vector<MemoryPlace> places_;  // of its groups
  Landing source_;                   // scratch: what a peer's read reads
  std::deque<Read> reads_;
  std::uint64_t next_read_ = 1;
  std::uint64_t read_bytes_ = 0;  // requested and not ended
  std::uint64_t unacknowledged_frames_ = 0;
  std::uint64_t unacknowledged_bytes_ = 0;
};

}  // namespace p2p::tcp
