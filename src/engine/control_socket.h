// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "base/bytes.h"
#include "base/unique_fd.h"
#include "drivers/socket/socket.h"
#include "p2p/result.h"
#include "transport/transport.h"
#include "wire/decode.h"

namespace p2p::engine {

/// A non-blocking stream socket with the frames that wait to leave through it. Owned by a session; one
/// thread, but for `send_now`.
class ControlSocket {
 public:
  /// What one `receive` brought.
  struct Received {
    std::size_t bytes = 0;
    bool end = false;  ///< the peer sends nothing more
  };

  explicit ControlSocket(UniqueFd fd) : fd_(std::move(fd)) {}

  /// Small messages leave at once; data that the peer leaves untaken for `timeout` is an
  /// error. Sockets other than TCP are left as they are, but for being made non-blocking.
  Status prepare(std::chrono::milliseconds timeout);

  int fd() const { return fd_.get(); }

  /// Nothing waits to leave.
  bool idle() const { return frames_.empty(); }

  /// A frame to send; `answer`: the peer's own doing.
  struct Frame {
    Bytes bytes;
    bool answer = false;
  };
  void push(Frame frame) {
    if (frame.answer) answers_ += frame.bytes.size();
    frames_.push_back(std::move(frame));
  }
  void push(Bytes frame) { push(Frame{std::move(frame)}); }

  /// Bytes of answers that wait to leave.
  std::size_t answers() const { return answers_; }

  /// Writes what the socket takes now; returns how many bytes that was. kPeerGone if there is no peer.
  Result<std::size_t> flush();

  /// Past the queue, from any thread while nothing waits and nobody flushes: how many of the bytes the socket
  /// took. What went wrong shows when the rest is flushed.
  std::size_t send_now(ByteView bytes) const;

  /// Feeds what has come to `reader`, one buffer at most. kPeerGone if the connection broke.
  Result<Received> receive(wire::FrameReader& reader);

  /// What the peer's machine has not acknowledged; nothing where the system cannot tell.
  socket::Answers unacknowledged() const;

  /// Tells the peer that nothing more comes.
  void finish_sending();

  PeerPath path() const;
  std::uint16_t peer_port() const;

  /// "127.0.0.1:4001", for errors.
  std::string peer() const;

 private:
  UniqueFd fd_;
  std::deque<Frame> frames_;
  std::size_t sent_ = 0;     ///< of the first frame
  std::size_t answers_ = 0;  ///< bytes of all frames that are answers
};

}  // namespace p2p::engine
