// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/socket/stream_io.h"

#include <linux/errqueue.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace p2p::socket {
namespace {

Result<Moved> outcome(ssize_t moved, std::size_t wanted, const char* what) {
  if (moved >= 0) {
    const auto bytes = static_cast<std::size_t>(moved);
    return Moved{.bytes = bytes, .blocked = bytes < wanted};
  }
  const int cause = errno;
  if (would_block(cause) || cause == EINTR) return Moved{.blocked = cause != EINTR};
  if (cause == EFAULT) return Moved{.faulted = true};
  Error error = system_error(what, cause);
  if (cause == ECONNRESET || cause == EPIPE || cause == ETIMEDOUT || cause == EHOSTUNREACH) {
    error.code = ErrorCode::kPeerGone;
  }
  return tl::unexpected(std::move(error));
}

std::size_t total(std::span<const iovec> pieces) {
  std::size_t bytes = 0;
  for (const iovec& piece : pieces) bytes += piece.iov_len;
  return bytes;
}

msghdr message_of(std::span<iovec> pieces) {
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  return message;
}

}  // namespace

bool would_block(int error_number) { return error_number == EAGAIN || error_number == EWOULDBLOCK; }

Result<Moved> try_receive(int fd, std::span<std::byte> into) {
  const ssize_t moved = ::recv(fd, into.data(), into.size(), MSG_DONTWAIT);
  if (moved == 0 && !into.empty()) return Moved{.ended = true};
  return outcome(moved, into.size(), "receive from a TCP stream");
}

Result<Moved> try_receive(int fd, std::span<iovec> into) {
  const std::size_t wanted = total(into);
  msghdr message = message_of(into);
  const ssize_t moved = ::recvmsg(fd, &message, MSG_DONTWAIT);
  if (moved == 0 && wanted != 0) return Moved{.ended = true};
  return outcome(moved, wanted, "receive from a TCP stream");
}

Result<Moved> try_peek(int fd, std::span<std::byte> into) {
  const ssize_t moved = ::recv(fd, into.data(), into.size(), MSG_DONTWAIT | MSG_PEEK);
  if (moved == 0 && !into.empty()) return Moved{.ended = true};
  return outcome(moved, into.size(), "look into a TCP stream");
}

Result<Moved> try_send(int fd, std::span<const std::byte> bytes, int flags) {
  const ssize_t moved = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT | flags);
  return outcome(moved, bytes.size(), "send on a TCP stream");
}

Result<Moved> try_send(int fd, std::span<iovec> pieces, int flags) {
  msghdr message = message_of(pieces);
  ssize_t moved = ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT | flags);
  bool zerocopy = (flags & MSG_ZEROCOPY) != 0;
  if (moved < 0 && errno == ENOBUFS && zerocopy) {
    zerocopy = false;
    moved = ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT | (flags & ~MSG_ZEROCOPY));
  }
  Result<Moved> result = outcome(moved, total(pieces), "send on a TCP stream");
  if (result) result->zerocopy = zerocopy && result->bytes != 0;
  return result;
}

Result<ZerocopyRange> next_zerocopy_range(int fd) {
  alignas(cmsghdr) char control[256];
  msghdr message{};
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (::recvmsg(fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) {
    if (would_block(errno) || errno == EINTR) return ZerocopyRange{};
    return tl::unexpected(system_error("read a TCP stream's error queue"));
  }
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
    const bool of_interest = (part->cmsg_level == SOL_IP && part->cmsg_type == IP_RECVERR) ||
                             (part->cmsg_level == SOL_IPV6 && part->cmsg_type == IPV6_RECVERR);
    if (!of_interest) continue;
    sock_extended_err report{};
    std::memcpy(&report, CMSG_DATA(part), sizeof report);
    if (report.ee_origin != SO_EE_ORIGIN_ZEROCOPY) continue;
    return ZerocopyRange{.first = report.ee_info,
                         .count = std::uint64_t{report.ee_data - report.ee_info} + 1,
                         .copied = (report.ee_code & SO_EE_CODE_ZEROCOPY_COPIED) != 0};
  }
  return ZerocopyRange{};
}

}  // namespace p2p::socket
