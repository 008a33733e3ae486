// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/socket/stream.h"

#include "drivers/socket/socket.h"

namespace p2p::socket {

Stream::~Stream() = default;

Result<Moved> Stream::try_send(std::span<iovec> pieces, int flags) {
  return socket::try_send(fd(), pieces, flags);
}

Result<Moved> Stream::try_receive(std::span<iovec> into) { return socket::try_receive(fd(), into); }

Result<Moved> Stream::receive_into(std::span<std::byte> into) {
  iovec whole{into.data(), into.size()};
  return try_receive({&whole, 1});
}

void Stream::set_low_water(std::size_t bytes) { set_receive_low_water(fd(), static_cast<int>(bytes)); }

bool Stream::readable_now() const { return socket::readable_now(fd()); }

}  // namespace p2p::socket
