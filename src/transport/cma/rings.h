// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/unique_fd.h"
#include "transport/message_ring.h"

namespace p2p::cma {

/// The rings between two channels, a pair for words and perhaps one for requests of copies and their
/// outcomes, and the socket by which each side wakes the other for what it has written.
class Rings {
 public:
  Rings() = default;

  /// Of one pair or two; `mine`: this side has created the memory. From now on the peer wakes this side.
  Rings(RingMemory memory, unsigned pairs, bool mine);

  bool has_requests() const { return has_requests_; }

  /// False: there is no room. kProtocol: the peer did what it must not, as with the readers.
  Result<bool> say(ByteView words, const UniqueFd& socket) { return write(words_out_, words, socket); }
  Result<bool> ask(ByteView request, const UniqueFd& socket) { return write(requests_out_, request, socket); }
  RingReader& words() { return words_in_; }
  RingReader& requests() { return requests_in_; }

  /// From now on a descriptor that comes is kept. Else the system closes those that come.
  void expect_descriptor() { expects_descriptor_ = true; }

  /// The descriptor that came by the socket among the wake-ups, before the message that tells of it; empty:
  /// none did.
  UniqueFd take_descriptor(const UniqueFd& socket);

  /// This side polls; false if wake-ups are still on the socket.
  bool enter_polling();

  /// This side sleeps until it is woken; false if there is something to read after all.
  bool arm_events(const UniqueFd& socket);

 private:
  static Result<bool> write(RingWriter& ring, ByteView block, const UniqueFd& socket);
  bool woken() const { return words_in_.wakes() + requests_in_.wakes() != 0; }
  bool take_packet(const UniqueFd& socket);

  RingMemory memory_;
  bool has_requests_ = false;
  RingWriter words_out_;
  RingReader words_in_;
  RingWriter requests_out_;
  RingReader requests_in_;
  unsigned arms_ = 0;
  bool expects_descriptor_ = false;
  UniqueFd descriptor_;  ///< the last one that came
};

}  // namespace p2p::cma
