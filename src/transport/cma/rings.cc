// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cma/rings.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <utility>

#include "transport/cma/handshake.h"

namespace p2p::cma {
namespace {

// Now and then more wake-ups are looked for than can be there, so that a peer which sends them for nothing is
// no burden.
constexpr unsigned kArmsALook = 64;

// Wake-ups are taken in one go so often.
constexpr int kWakesAtOnce = 64;

}  // namespace

Rings::Rings(RingMemory memory, unsigned pairs, bool mine)
    : memory_(std::move(memory)),
      has_requests_(pairs == 2),
      words_out_(memory_.direction(mine ? 0 : 1)),
      words_in_(memory_.direction(mine ? 1 : 0)) {
  words_in_.arm_events();  // whatever the peer did to it: this side looks before it sleeps
  if (!has_requests_) return;
  requests_out_ = RingWriter(memory_.direction(mine ? 0 : 1, 1));
  requests_in_ = RingReader(memory_.direction(mine ? 1 : 0, 1));
  requests_in_.arm_events();
}

Result<bool> Rings::write(RingWriter& ring, ByteView block, const UniqueFd& socket) {
  auto written = ring.write(block);
  // A full socket holds wake-ups enough.
  if (written && *written && ring.wake_due()) ::send(socket.get(), "", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
  return written;
}

bool Rings::enter_polling() {
  words_in_.enter_polling();
  if (has_requests_) requests_in_.enter_polling();
  return !woken();
}

// Wake-ups are taken off the socket here alone: until then it tells whoever sleeps on it that there was one.
bool Rings::arm_events(const UniqueFd& socket) {
  if (woken() || arms_++ % kArmsALook == 0) {
    for (int i = 0; i != kWakesAtOnce && take_packet(socket); ++i) continue;
  }
  const bool quiet = words_in_.arm_events() && (!has_requests_ || requests_in_.arm_events());
  if (!quiet) enter_polling();  // nobody is to wake who looks
  return quiet;
}

// More wake-ups than this lie before it only if the peer sends them for nothing.
UniqueFd Rings::take_descriptor(const UniqueFd& socket) {
  for (int i = 0; i != 16 * kWakesAtOnce && !descriptor_ && take_packet(socket); ++i) continue;
  expects_descriptor_ = false;
  return std::exchange(descriptor_, UniqueFd());
}

// A wake-up, or a descriptor. False: there is none.
bool Rings::take_packet(const UniqueFd& socket) {
  std::array<std::byte, 8> packet;
  UniqueFd descriptor;
  const ssize_t taken = expects_descriptor_
                            ? receive_with_descriptor(socket, packet, descriptor)
                            : ::recv(socket.get(), packet.data(), packet.size(), MSG_DONTWAIT);
  if (taken <= 0) return false;
  if (descriptor) {
    descriptor_ = std::move(descriptor);
    return true;
  }
  // One is as good as another.
  const auto count = static_cast<std::uint64_t>(taken);
  const std::uint64_t for_words = std::min(count, words_in_.wakes());
  words_in_.note_wakes(for_words);
  requests_in_.note_wakes(count - for_words);
  return true;
}

}  // namespace p2p::cma
