// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "drivers/socket/stream.h"
#include "transport/batch.h"
#include "transport/tcp/stream/descriptors.h"
#include "transport/tcp/stream/liveness.h"
#include "transport/tcp/stream/out_frame.h"
#include "transport/tcp/stream/write_window.h"
#include "transport/tcp/stream/zerocopy.h"

namespace p2p::tcp {

/// The outgoing half of a stream: frames in order of urgency, my writes (write_window.h), and the count of
/// the peer's writes that this side acknowledges. Belongs to a channel, on its thread. What ended goes to the
/// vector given at construction, and `liveness` hears of all that leaves.
class Sender {
 public:
  Sender(std::vector<Completion>& completions, Liveness& liveness)
      : completions_(completions), liveness_(liveness), writes_(completions) {}
  ~Sender();
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;

  /// From now on `flush` sends on `stream`, which outlives the last call of it; in clear, from where they lie
  /// frames of at least so many bytes (0: none).
  void start(socket::Stream& stream, std::size_t zerocopy_bytes);
  bool zerocopy_outstanding() const { return zerocopy_.outstanding(); }

  /// Room for a write of so many bytes.
  bool takes_write(std::uint64_t bytes) const { return writes_.takes(bytes); }

  void set_long_path() { writes_.set_long_path(); }

  /// `staged`, if there is one, holds the batch's bytes instead of its local memory until it has completed.
  void post_write(const Batch& batch, std::byte* staged = nullptr);
  void post_read_request(std::uint64_t number, const Batch& batch);

  /// True if the request had not been started, so that the peer will never hear of it.
  bool withdraw_read_request(std::uint64_t number);

  /// Answers a peer's read with memory of mine that `guards` cover.
  void respond(std::uint64_t number, std::vector<iovec>& pieces,
               std::vector<std::shared_ptr<Registration>>& guards);

  /// Answers with memory of this side's own, which `keep` holds until it is sent.
  void respond(std::uint64_t number, std::span<std::byte> bytes, std::shared_ptr<void> keep);
  void end_read(std::uint64_t number, const Status& outcome);

  /// A block of words, ahead of what was not started; false if so many wait that more would be of no use.
  bool post_messages(ByteView block);

  /// The peer's reads that are not answered to the end.
  std::uint64_t peer_reads() const { return peer_reads_; }

  /// The peer's next write was dealt with: it landed, or not. kProtocol if the peer has more of them on its
  /// way than it may.
  Status write_done(const Status& outcome);
  std::uint64_t writes_done() const { return done_; }
  void want_acknowledgement() { acknowledgement_wanted_ = true; }

  /// Also where the peer knows the count: so that its host answers.
  void post_acknowledgement() { make_frame(kRequests, {.type = FrameType::kAck}); }

  /// Sends what the socket takes, up to a bound. Answers whether anything went.
  Result<bool> flush();

  /// Something is to be sent still.
  bool pending() const;

  /// The peer has dealt with all my writes up to `number`; kProtocol if that cannot be.
  Status acknowledged(std::uint64_t number);
  Status refused(std::uint64_t number, const Error& why) { return writes_.refused(number, why); }

  /// False if no write of mine has this id.
  bool abandon(BatchId id);

  /// Ends all writes and sends no more.
  void fail(const Error& why);

 private:
  using FramePtr = std::unique_ptr<OutFrame>;
  enum Urgency : std::size_t { kRefusals, kRequests, kBulk, kUrgencies };

  OutFrame& make_frame(Urgency urgency, const FrameHeader& header);
  bool start_next();
  std::size_t gather(int& flags);
  void guard(OutFrame& frame);
  bool blank_bad_memory();
  void advance(std::size_t bytes);
  void finish_front();

  std::vector<Completion>& completions_;
  Liveness& liveness_;
  socket::Stream* stream_ = nullptr;
  std::array<std::deque<FramePtr>, kUrgencies> queues_;  // not started
  std::deque<FramePtr> started_;                         // in the order of the stream
  std::vector<FramePtr> spare_;
  std::array<iovec, 1024> pieces_;
  std::vector<AccessGuard> accesses_;  // during one send
  RangeList ranges_;                   // scratch

  WriteWindow writes_;
  std::uint64_t peer_reads_ = 0;
  std::size_t word_frames_ = 0;  // not sent to the end

  std::uint64_t done_ = 0;       // of the peer's writes
  std::uint64_t announced_ = 0;  // of those, in a frame that was started
  bool acknowledgement_wanted_ = false;

  Zerocopy zerocopy_;
  unsigned faults_ = 0;  // that nothing explains
};

}  // namespace p2p::tcp
