// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/socket/stream.h"

#include <algorithm>

#include "base/io_vector.h"
#include "base/safe_copy.h"
#include "drivers/socket/socket.h"

namespace p2p::socket {
namespace {

// Fewer are quicker as they are, and so are longer ones: docs/performance.md.
constexpr std::size_t kFew = 4;
constexpr std::size_t kSmall = 1024;

bool small(std::span<const iovec> pieces) {
  return pieces.size() > kFew && total_bytes(pieces) < kSmall * pieces.size();
}

}  // namespace

Stream::~Stream() = default;

Result<Moved> Stream::try_send(std::span<iovec> pieces, int flags) {
  if (kept() != 0) {
    const Result<Moved> before = send_kept();
    if (!before || kept() != 0) return before;
  }
  if (flags != 0 || !small(pieces)) return socket::try_send(fd(), pieces, flags);
  const std::span<std::byte> room = copy_room();
  const std::size_t most = std::min(total_bytes(pieces), room.size());
  const std::size_t bytes = copy_in(room.data(), pieces, most);
  const Result<Moved> moved = socket::try_send(fd(), room.first(bytes));
  if (!moved) return moved;
  const auto rest = room.subspan(moved->bytes, bytes - moved->bytes);
  kept_.assign(rest.begin(), rest.end());
  return Moved{.bytes = bytes, .blocked = !rest.empty(), .faulted = bytes != most};
}

/// Answers for the bytes of before: none of the caller's.
Result<Moved> Stream::send_kept() {
  const Result<Moved> moved = socket::try_send(fd(), ByteView(kept_).subspan(kept_sent_));
  if (!moved) return moved;
  kept_sent_ += moved->bytes;
  if (kept() == 0) {
    kept_.clear();
    kept_sent_ = 0;
  }
  return Moved{.blocked = moved->blocked};
}

Result<Moved> Stream::try_receive(std::span<iovec> into) {
  if (!small(into)) return socket::try_receive(fd(), into);
  const std::span<std::byte> room = copy_room();
  const std::size_t most = std::min(total_bytes(into), room.size());
  Result<Moved> moved = socket::try_receive(fd(), room.first(most));
  if (moved) moved->faulted = !land(into, room.data(), moved->bytes);
  return moved;
}

Result<Moved> Stream::receive_into(std::span<std::byte> into) {
  iovec whole{into.data(), into.size()};
  return try_receive({&whole, 1});
}

void Stream::set_low_water(std::size_t bytes) { set_receive_low_water(fd(), static_cast<int>(bytes)); }

bool Stream::readable_now() const { return socket::readable_now(fd()); }

}  // namespace p2p::socket
