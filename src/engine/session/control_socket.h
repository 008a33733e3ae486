// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "drivers/crypto/tls.h"
#include "drivers/socket/socket.h"
#include "p2p/result.h"
#include "transport/transport.h"
#include "wire/decode.h"

namespace p2p::engine {

/// A non-blocking stream socket with the frames that wait to leave through it, in clear or by TLS. Owned by a
/// session; one thread, but for `send_now`.
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

  /// From here on all is TLS but what waits to leave already. `receive` has handed on all that came before.
  Status start_tls(std::shared_ptr<const crypto::Credentials> credentials, crypto::Tls::Side side);

  /// Who the peer has proven to be, and the secret of this connection.
  struct Sealed {
    std::string peer;
    crypto::Tls::Secret secret{};
  };

  /// Once TLS is established; `context` goes into the secret.
  Result<std::optional<Sealed>> sealed(ByteView context);

  /// The peer, which dials, has begun TLS in a way that this side has answered.
  bool tls_answered() const;

  /// Sealed bytes wait to leave. Any thread.
  bool left_over() const;

  /// Nothing waits to leave.
  bool idle() const { return frames_.empty() && !left_over(); }

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
  Result<std::size_t> flush() { return tls_on_ ? flush_sealed() : flush_clear(); }

  /// Past the queue, from any thread while nothing waits and nobody flushes: how many of the bytes need no
  /// more care but that of `left_over`. What went wrong shows when the rest is flushed.
  std::size_t send_now(ByteView bytes);

  /// Feeds what has come to `reader`, one buffer at most. kPeerGone if the connection broke. TLS has errors
  /// of its own, after which nothing more is fed and what waits to leave tells the peer.
  Result<Received> receive(wire::FrameReader& reader);

  /// What the peer's machine has not acknowledged; nothing where the system cannot tell.
  socket::Answers unacknowledged() const;

  /// The connection broke, and was not ended by the peer.
  bool broke() const { return socket::is_broken(fd()); }

  /// Its close drops what is unsent, and tells the peer by a reset, which is no end.
  void discard_at_close() { socket::discard_at_close(fd()); }

  /// Tells the peer that nothing more comes.
  void finish_sending();

  PeerPath path() const;
  std::uint16_t peer_port() const;

  /// "127.0.0.1:4001", for errors.
  std::string peer() const;

 private:
  Result<std::size_t> flush_clear();
  Result<std::size_t> flush_sealed();
  Result<std::size_t> flush_outgoing(crypto::Tls& tls) const;
  void drop_first();

  UniqueFd fd_;
  std::deque<Frame> frames_;
  std::size_t sent_ = 0;     ///< of the first frame
  std::size_t answers_ = 0;  ///< bytes of all frames that are answers

  bool tls_on_ = false;      // never changes while anybody may `send_now`
  bool tls_failed_ = false;  // what comes is dropped
  mutable Mutex mutex_;
  std::unique_ptr<crypto::Tls> tls_ P2P_GUARDED_BY(mutex_);  // its bytes leave in the order of their making
};

}  // namespace p2p::engine
