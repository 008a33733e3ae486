// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "device/staging.h"
#include "transport/batch.h"
#include "transport/tcp/requests/read_window.h"
#include "transport/tcp/stream/receiver.h"
#include "transport/tcp/stream/sender.h"

namespace p2p::tcp {

/// The reads of one side of a stream, from their request until the peer's answer has landed. Answers for
/// device memory land in a slot and are unpacked from there. Belongs to a channel, on its thread; what ended
/// goes to the vector given at construction.
class ReadRequests {
 public:
  ReadRequests(std::shared_ptr<device::Staging> staging, Sender& sender, std::vector<Completion>& completions)
      : staging_(std::move(staging)), sender_(sender), completions_(completions) {}
  ReadRequests(const ReadRequests&) = delete;
  ReadRequests& operator=(const ReadRequests&) = delete;

  /// Has as many bytes under way as it takes to keep a long path busy, and leaves the rest to other streams.
  void set_long_path(std::chrono::microseconds round_trip) { window_.set_long_path(round_trip); }

  /// False: full.
  bool post(const Batch& batch);

  /// The bytes for a read begin to come, and have come; kProtocol if they were not asked for.
  Status begin_response(const FrameHeader& header, Landing& landing);
  void end_response(const FrameHeader& header, const Landing& landing);

  /// The peer says how a read ended.
  Status end(const FrameHeader& header, ByteView reason);

  /// Ends reads whose bytes have reached their device. True if there were any.
  bool settle();

  /// Answers wait to be unpacked.
  bool busy() const;

  /// Ends the batch. Its response may still come: `receiver` and `begin_response` throw that away.
  void abandon(BatchId id, Receiver& receiver);

  /// Ends all. The staging was closed before.
  void fail(const Error& why);

 private:
  using Slot = device::Staging::Slot;
  struct Read {
    std::uint64_t number = 0;
    Batch batch;  // empty once abandoned
    bool abandoned = false;
    bool landed = false;
    Status outcome;  // what is known of it

    // Of a read into device memory:
    Slot* slot = nullptr;
    bool ended = false;  // and its outcome is told once the slot is unpacked
  };

  Read* find(std::uint64_t number);
  void unpack(Read& read);

  std::shared_ptr<device::Staging> staging_;
  Sender& sender_;
  std::vector<Completion>& completions_;
  std::deque<Read> reads_;
  std::uint64_t next_ = 1;
  std::uint64_t bytes_ = 0;  // requested and not ended
  ReadWindow window_;
};

}  // namespace p2p::tcp
