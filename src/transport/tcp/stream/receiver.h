// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/own_pages.h"
#include "drivers/socket/stream.h"
#include "p2p/result.h"
#include "transport/registration.h"
#include "transport/tcp/stream/frame.h"

namespace p2p::tcp {

/// Where the payload of a frame goes.
struct Landing {
  std::vector<iovec> pieces;

  /// Of the pieces, where they are memory that the peer named: access is begun and ended around each copy.
  std::vector<std::shared_ptr<Registration>> guards;

  /// Set: the payload is thrown away.
  std::optional<Error> refusal;

  void clear();
};

/// What becomes of frames. An error ends the stream.
class FrameHandler {
 public:
  virtual ~FrameHandler() = default;

  /// A frame begins. If it has a payload, `landing` (empty) is to say where that goes: pieces of exactly as
  /// many bytes, or a refusal.
  virtual Status begin_frame(const FrameHeader& header, ByteView descriptors, Landing& landing) = 0;

  /// All of its payload has landed, or was thrown away for `landing.refusal`.
  virtual Status end_frame(const FrameHeader& header, const Landing& landing) = 0;
};

/// The incoming half of a stream: cuts it into frames and lands their payload straight in place. Small frames
/// come with one call through a staging buffer. Belongs to a channel, on its thread.
class Receiver {
 public:
  explicit Receiver(FrameHandler& handler);

  /// What one call of `receive` did.
  struct Received {
    std::size_t bytes = 0;
    bool more = false;  ///< the bound was met, the stream may hold more
  };

  /// Takes what the stream has, up to a bound. kPeerGone if the stream has ended.
  Result<Received> receive(socket::Stream& stream);

  /// Some of a frame has come, and not all of it.
  bool in_frame() const { return in_frame_ || staged() != 0; }

  /// Throws away the rest of the payload that is landing, if it is that of response `number`.
  void discard_response(std::uint64_t number);

 private:
  Result<Received> receive_some(socket::Stream& stream);
  Result<Received> receive_payload(socket::Stream& stream);
  Result<Received> receive_discarded(socket::Stream& stream);
  Status parse();
  Result<bool> parse_header();
  Status land_staged();
  Status finish_frame();
  bool begin_accesses();
  void advance_pieces(std::size_t bytes);
  void refuse_bad_memory();
  void refuse(Error why);
  void adjust_low_water(socket::Stream& stream);
  std::size_t staged() const { return staged_end_ - staged_begin_; }

  FrameHandler& handler_;
  std::vector<std::byte, OwnPages<std::byte>> staging_;
  std::size_t staged_begin_ = 0;
  std::size_t staged_end_ = 0;
  std::size_t staged_wanted_ = FrameHeader::kBytes;  // for the frame that is being put together

  bool in_frame_ = false;
  FrameHeader header_;
  Landing landing_;
  std::size_t next_piece_ = 0;
  std::vector<AccessGuard> accesses_;  // during one copy
  std::size_t payload_left_ = 0;
  std::size_t lookahead_ = 0;  // bytes to take along behind a payload: the next frame's head

  std::vector<std::byte> discard_;
  std::size_t low_water_ = 1;
};

}  // namespace p2p::tcp
