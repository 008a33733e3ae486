// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>

#include "base/bytes.h"
#include "p2p/result.h"
#include "wire/messages.h"

namespace p2p::wire {

/// One message from a frame's contents, that is without the length: kProtocol unless they are what `encode`
/// makes.
Result<Message> decode(ByteView contents);

/// The same in place of what `message` was, whose memory is used again if it was of the same type. After an
/// error it is any message.
Status decode(ByteView contents, Message& message);

/// Cuts a stream of bytes that nobody vouches for into messages. Holds no more memory than the bytes it was
/// fed and did not yet give out.
class FrameReader {
 public:
  /// Refuses frames longer than `max_frame_bytes`, length included, as soon as their length is known.
  explicit FrameReader(std::size_t max_frame_bytes = kMaxFrameBytes) : max_frame_bytes_(max_frame_bytes) {}

  /// Applies to the frames that `next` was not yet asked for.
  void set_max_frame_bytes(std::size_t bytes) { max_frame_bytes_ = bytes; }

  void feed(ByteView bytes);

  /// The next message; nothing if more bytes are needed first; kProtocol once the stream cannot be followed
  /// any more, from then on always.
  Result<std::optional<Message>> next();

  /// Bytes fed and not yet given out.
  std::size_t buffered() const { return buffer_.size() - taken_; }

 private:
  Bytes buffer_;
  std::size_t taken_ = 0;
  std::size_t max_frame_bytes_;
  std::optional<Error> error_;
};

}  // namespace p2p::wire
