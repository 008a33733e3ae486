// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "p2p/result.h"

/// Moving bytes over a TCP socket, as far as it goes without blocking.
namespace p2p::socket {

/// What one call moved. `blocked`: the socket takes or has no more now; `ended`: the peer closed its side.
struct Moved {
  std::size_t bytes = 0;
  bool blocked = false;
  bool ended = false;
  bool zerocopy = false;  ///< MSG_ZEROCOPY was asked for and took effect
  bool faulted = false;   ///< memory of the caller's was bad (EFAULT); the stream is well
};

Result<Moved> try_receive(int fd, std::span<std::byte> into);
Result<Moved> try_receive(int fd, std::span<iovec> into);

/// What has come, without taking it from the stream.
Result<Moved> try_peek(int fd, std::span<std::byte> into);

/// `flags` besides MSG_NOSIGNAL and MSG_DONTWAIT. MSG_ZEROCOPY is dropped where memory for it is short.
Result<Moved> try_send(int fd, std::span<const std::byte> bytes, int flags = 0);
Result<Moved> try_send(int fd, std::span<iovec> pieces, int flags = 0);

/// MSG_ZEROCOPY sends whose memory the kernel has let go of, numbered from 0 modulo 2^32. None: count 0.
struct ZerocopyRange {
  std::uint32_t first = 0;
  std::uint64_t count = 0;
  bool copied = false;
};
Result<ZerocopyRange> next_zerocopy_range(int fd);

/// The error number says that the call would have had to wait.
bool would_block(int error_number);

}  // namespace p2p::socket
