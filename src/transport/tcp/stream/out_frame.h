// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "p2p/result.h"
#include "transport/batch.h"
#include "transport/registration.h"
#include "transport/tcp/stream/frame.h"

namespace p2p::tcp {

/// One frame on its way out: `head` (header and descriptors), `body` (memory of mine that is sent from where
/// it lies), `end` (the frame that closes a read's response). Reused, so that its vectors keep their room.
struct OutFrame {
  FrameHeader header;
  Bytes head;
  std::vector<iovec> body;
  Bytes end;

  /// Of the body, where a peer asked for it: access is begun and ended around each send.
  std::vector<std::shared_ptr<Registration>> guards;

  /// Holds the body where that is memory of this side's own; let go of with the frame.
  std::shared_ptr<void> keep;

  BatchId batch{};        ///< of a write
  bool of_batch = false;  ///< the body is a batch's local memory
  Bytes copy;             ///< stands in for the body of an abandoned write
  std::size_t head_sent = 0;
  std::size_t next_piece = 0;  ///< first of the body that is not sent; cut as it goes
  std::size_t end_sent = 0;

  void clear();

  bool sent() const {
    return head_sent == head.size() && next_piece == body.size() && end_sent == end.size();
  }
  std::size_t body_left() const;

  /// Makes header and descriptors final: nothing but `head` changes.
  void seal();

  /// Appends what is left, at most `room` pieces.
  std::size_t gather(std::span<iovec> room);

  /// Takes note that the next `bytes` (at most what is left) are sent; answers how many of them were its own.
  std::size_t advance(std::size_t bytes);

  /// Goes on from a private copy of what is left of the body; from zeros, and an error, where it is bad.
  Status detach();

  /// Goes on with zeros, because the memory may be read no more.
  void blank();

  /// The same for the answer to a read, which says why at its end.
  void blank(const Error& why);
};

/// Appends a whole frame of a header and a reason.
void append_outcome(Bytes& out, FrameHeader header, std::string_view reason);

}  // namespace p2p::tcp
