// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

#include "base/unique_fd.h"
#include "drivers/socket/address.h"
#include "drivers/socket/stream_io.h"  // IWYU pragma: export
#include "p2p/result.h"

/// TCP sockets: all of them non-blocking and closed on exec.
namespace p2p::socket {

/// Listens on `address`; port 0 lets the system choose. kUnavailable if the port is taken, kPermissionDenied
/// if this user may not have it.
Result<UniqueFd> open_listener(const Address& address, int backlog);

/// The next waiting connection; no descriptor if none waits.
Result<UniqueFd> try_accept(int listener);

/// Starts to connect to `remote` from `local` (any port of it).
Result<UniqueFd> start_dial(const Address& local, const Address& remote);

/// True once connected, false while under way, else why it failed.
Result<bool> dial_finished(int fd);

Result<Address> local_address(int fd);
Result<Address> peer_address(int fd);

/// What a stream that carries bulk data is set to.
struct StreamOptions {
  std::chrono::milliseconds user_timeout{0};  ///< unacknowledged for longer: the peer is gone; 0: never

  /// While nothing is on its way, in seconds: the kernel probes the other host, which is gone when it has not
  /// answered for so long; 0: it does not.
  std::chrono::milliseconds keepalive{0};

  int buffer_bytes = 0;  ///< of both directions; 0: the kernel tunes them

  /// Between two sockets of one host nothing is lost, and pacing (BBR) only keeps bytes back: without it.
  bool within_host = false;
};

/// TCP_NODELAY and `options`. Buffers are cut to what the system allows; a system without Reno keeps its
/// pacing.
Status tune_stream(int fd, const StreamOptions& options);

/// What the other host owes a stream.
struct Answers {
  bool awaited = false;  ///< it was sent bytes, or probes of its full window, and has not answered
  bool unsure = false;   ///< as far as is known; what goes to it again may not even leave this host
  bool waiting = false;  ///< bytes wait for room in its window, or go again
  std::chrono::milliseconds last{};  ///< since its last acknowledgement
};
Result<Answers> answers_of(int fd);

/// Something has come from the other host over a stream within this time, bytes or acknowledgements.
bool heard_within(int fd, std::chrono::milliseconds time);

/// There is no connection any more: it was reset, or the system gave it up. Not so while only the peer has
/// ended it. False where the system cannot tell.
bool is_broken(int fd);

/// The least bytes that make the socket readable. Failing to set it costs wake-ups, nothing else.
void set_receive_low_water(int fd, int bytes);

/// The socket takes bytes only while fewer than that wait for their turn on the path. Failing to set it costs
/// time, nothing else.
void limit_unsent(int fd, int bytes);

/// Sets SO_ZEROCOPY; false where the system cannot.
bool allow_zerocopy(int fd);

/// Makes the close of `fd` drop what is unsent.
void discard_at_close(int fd);

/// Readable (or broken) now, by the low-water mark.
bool readable_now(int fd);

}  // namespace p2p::socket
