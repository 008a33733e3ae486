// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "baseline.h"
#include "block_list.h"
#include "buffer.h"
#include "child.h"
#include "failure.h"
#include "percentile.h"
#include "sizes.h"

namespace p2p::perf {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kSocketBufferBytes = std::size_t{64} << 20;
constexpr int kSocketBytes = 4 << 20;
constexpr int kLowWater = 256 << 10;
constexpr std::chrono::milliseconds kStreamTime{400};
constexpr std::size_t kPingBytes = 4096;
constexpr unsigned kPings = 5000;
constexpr std::chrono::seconds kSocketPatience{20};

/// A connected pair of TCP sockets over the loopback interface.
class SocketPair {
 public:
  static Result<SocketPair> make() {
    SocketPair pair;
    const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof address;
    pair.near_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || pair.near_ < 0) {
      const int error = errno;
      if (listener >= 0) ::close(listener);
      return fail_errno("open a TCP socket", error);
    }
    set_up(listener);
    set_up(pair.near_);
    if (::bind(listener, generic, size) == 0 && ::listen(listener, 1) == 0 &&
        ::getsockname(listener, generic, &size) == 0 && ::connect(pair.near_, generic, size) == 0) {
      pair.far_ = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    }
    const int error = errno;
    ::close(listener);
    if (pair.far_ < 0) return fail_errno("connect two sockets over loopback", error);
    set_up(pair.far_);
    return pair;
  }

  SocketPair(SocketPair&& other) noexcept
      : near_(std::exchange(other.near_, -1)), far_(std::exchange(other.far_, -1)) {}
  SocketPair& operator=(SocketPair&&) = delete;
  ~SocketPair() {
    close_near();
    close_far();
  }

  int near_end() const { return near_; }
  int far_end() const { return far_; }
  void close_near() { close_one(near_); }
  void close_far() { close_one(far_); }

 private:
  SocketPair() = default;

  static void close_one(int& fd) {
    if (fd >= 0) ::close(std::exchange(fd, -1));
  }

  static void set_up(int fd) {
    const int on = 1;
    const timeval patience{kSocketPatience.count(), 0};
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kSocketBytes, sizeof kSocketBytes);
    ::setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &kSocketBytes, sizeof kSocketBytes);
    ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  }

  int near_ = -1;
  int far_ = -1;
};

/// How a stream's memory is laid out on both sides, and how much of it a send takes.
struct StreamShape {
  std::size_t block = 0;   ///< bytes
  std::size_t a_call = 1;  ///< blocks
  bool shuffled = false;
};

BlockRing ring_over(std::span<std::byte> bytes, const StreamShape& shape, std::uint64_t seed) {
  if (!shape.shuffled) return BlockRing({{bytes.data(), bytes.size()}}, 1);
  const auto address = reinterpret_cast<std::uintptr_t>(bytes.data());
  return BlockRing(shuffled_blocks(address, bytes.size() / shape.block, shape.block, seed), shape.a_call);
}

/// Takes bytes into a large buffer until the sender shuts down, then answers one byte.
int receive_stream(int fd, const StreamShape& shape) {
  const auto pages = Pages::allocate(kSocketBufferBytes);
  if (!pages) return 1;
  ::setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &kLowWater, sizeof kLowWater);
  BlockRing ring = ring_over(pages->bytes(), shape, 1);
  ::send(fd, "r", 1, MSG_NOSIGNAL);
  for (;;) {
    pollfd watched{fd, POLLIN, 0};
    ::poll(&watched, 1, static_cast<int>(std::chrono::milliseconds(kSocketPatience).count()));
    const std::span<iovec> room = ring.next();
    msghdr message{};
    message.msg_iov = room.data();
    message.msg_iovlen = room.size();
    const ssize_t got = ::recvmsg(fd, &message, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got < 0) return 1;
    if (got == 0) break;
    ring.advance(static_cast<std::size_t>(got));
  }
  return ::send(fd, "e", 1, MSG_NOSIGNAL) == 1 ? 0 : 1;
}

/// GB/s of one connection between two processes.
Result<double> measure_stream(std::span<std::byte> bytes, const StreamShape& shape) {
  auto pair = SocketPair::make();
  if (!pair) return tl::unexpected(pair.error());
  auto child = Child::fork_body([&](int) {
    pair->close_near();
    return receive_stream(pair->far_end(), shape);
  });
  if (!child) return tl::unexpected(child.error());
  pair->close_far();
  const int fd = pair->near_end();
  char answer = 0;
  if (::recv(fd, &answer, 1, 0) != 1) return fail_errno("wait for the receiver");
  BlockRing ring = ring_over(bytes, shape, 2);
  const auto start = Clock::now();
  std::uint64_t sent = 0;
  while (Clock::now() < start + kStreamTime) {
    const std::span<iovec> pieces = ring.next();
    if (!shape.shuffled) pieces[0].iov_len = std::min(pieces[0].iov_len, shape.block);
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = pieces.size();
    const ssize_t size = ::sendmsg(fd, &message, MSG_NOSIGNAL);
    if (size < 0) return fail_errno("send over loopback");
    sent += static_cast<std::uint64_t>(size);
    ring.advance(static_cast<std::size_t>(size));
  }
  ::shutdown(fd, SHUT_WR);
  if (::recv(fd, &answer, 1, 0) != 1) return fail_errno("wait for the receiver's end");
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  const auto status = child->wait(kSocketPatience);
  if (!status) return tl::unexpected(status.error());
  return static_cast<double>(sent) / seconds / 1e9;
}

struct Best {
  double speed = 0;
  StreamShape shape;
};

Result<Best> best_of(std::span<std::byte> bytes, std::initializer_list<StreamShape> candidates) {
  Best best;
  for (const StreamShape& shape : candidates) {
    const auto speed = measure_stream(bytes, shape);
    if (!speed) return tl::unexpected(speed.error());
    if (*speed > best.speed) best = {*speed, shape};
  }
  return best;
}

/// Moves exactly `size` bytes without sleeping; false if the other side is gone.
template <class Call>
bool spin(std::byte* data, std::size_t size, Call&& call) {
  for (std::size_t done = 0; done < size;) {
    const ssize_t moved = call(data + done, size - done);
    if (moved == 0 || (moved < 0 && errno != EAGAIN && errno != EINTR)) return false;
    if (moved > 0) done += static_cast<std::size_t>(moved);
  }
  return true;
}

bool spin_receive(int fd, std::span<std::byte> bytes) {
  return spin(bytes.data(), bytes.size(),
              [fd](std::byte* at, std::size_t size) { return ::recv(fd, at, size, MSG_DONTWAIT); });
}

bool spin_send(int fd, std::span<std::byte> bytes) {
  return spin(bytes.data(), bytes.size(), [fd](std::byte* at, std::size_t size) {
    return ::send(fd, at, size, MSG_DONTWAIT | MSG_NOSIGNAL);
  });
}

/// Median microseconds of a round trip of 4 KiB each way.
Result<double> measure_round_trip() {
  auto pair = SocketPair::make();
  if (!pair) return tl::unexpected(pair.error());
  std::array<std::byte, kPingBytes> bytes{};
  const auto child = Child::fork_body([&](int) {
    pair->close_near();
    while (spin_receive(pair->far_end(), bytes) && spin_send(pair->far_end(), bytes)) {
    }
    return 0;
  });
  if (!child) return tl::unexpected(child.error());
  pair->close_far();
  std::vector<double> times;
  for (unsigned i = 0; i < kPings; ++i) {
    const auto start = Clock::now();
    if (!spin_send(pair->near_end(), bytes) || !spin_receive(pair->near_end(), bytes)) {
      return fail_errno("exchange 4 KiB over loopback");
    }
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  return percentile(times, 0.5);
}

}  // namespace

Result<std::vector<Baseline>> measure_sockets() {
  const auto pages = Pages::allocate(kSocketBufferBytes);
  if (!pages) return tl::unexpected(pages.error());
  const std::span<std::byte> bytes = pages->bytes();
  // Multiples of the loopback segment of 65483 bytes avoid its slow sizes; powers of two are what is common.
  const auto stream = best_of(
      bytes, {{261932}, {1047728}, {std::size_t{1} << 20}, {std::size_t{4} << 20}, {kSocketBufferBytes}});
  if (!stream) return tl::unexpected(stream.error());
  const auto small = best_of(bytes, {{4096, 64, true}, {4096, 256, true}});
  if (!small) return tl::unexpected(small.error());
  const auto middle = best_of(bytes, {{16384, 16, true}, {16384, 64, true}});
  if (!middle) return tl::unexpected(middle.error());
  const auto round_trip = measure_round_trip();
  if (!round_trip) return tl::unexpected(round_trip.error());
  const auto blocks = [](std::string_view name, const Best& best) {
    return Baseline{std::string(name),
                    fmt::format("TCP loopback, one raw socket, {} blocks shuffled, {} a call",
                                format_size(best.shape.block), best.shape.a_call),
                    best.speed, "GB/s"};
  };
  return std::vector<Baseline>{
      {std::string(kTcpStream),
       fmt::format("TCP loopback, one raw socket, best with writes of {}", format_size(stream->shape.block)),
       stream->speed, "GB/s"},
      blocks(kTcpBlocks4K, *small),
      blocks(kTcpBlocks16K, *middle),
      {std::string(kTcpRoundTrip), "TCP loopback, 4 KiB there and back, spinning, p50", *round_trip, "us"}};
}

}  // namespace p2p::perf
