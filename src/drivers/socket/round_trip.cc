// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/socket/round_trip.h"

#include <linux/sockios.h>
#include <linux/tcp.h>  // whose tcp_info is longer than the one of netinet/tcp.h, which cannot be had besides
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>

namespace p2p::socket {

namespace {

// False: not a TCP socket, or not any more.
bool look(int fd, tcp_info& info) {
  socklen_t size = sizeof info;
  return ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0;
}

// Of what was never measured the kernel says that it takes for ever.
std::chrono::microseconds round_trip_of(const tcp_info& info) {
  return std::chrono::microseconds(info.tcpi_min_rtt == ~0U ? 0U : info.tcpi_min_rtt);
}

std::uint64_t window_of(const tcp_info& info) {
  return std::uint64_t{info.tcpi_snd_cwnd} * info.tcpi_snd_mss;
}

// A stream's window and buffer grow with it, up to bounds of the hosts, and are behind for so long.
constexpr std::uint32_t kGrowing = 500'000;  // us

// What it sends has waited for them for a fourth of the time, and yet an eighth of what may be on its way has
// gone in each round trip: where the peer's thread is behind its window is full as well, and less goes. Or
// what it receives comes as one full window in a round trip, of which the kernel offers twice as much if it
// may.
bool waits_for_buffers(const tcp_info& info) {
  const std::uint64_t window = window_of(info);
  if (info.tcpi_rcv_space > window) return std::uint64_t{info.tcpi_rcv_space} * 2 > info.tcpi_rcv_ssthresh;
  const std::uint64_t waited =
      info.tcpi_sndbuf_limited + (info.tcpi_snd_wnd < window ? info.tcpi_rwnd_limited : 0);
  const std::uint64_t busy = info.tcpi_busy_time;
  if (busy <= kGrowing || 4 * waited <= busy) return false;
  const double round_trips = static_cast<double>(busy) / static_cast<double>(round_trip_of(info).count());
  return 8 * static_cast<double>(info.tcpi_bytes_acked) > round_trips * static_cast<double>(window);
}

}  // namespace

std::chrono::microseconds least_round_trip(int fd) {
  tcp_info info{};
  return look(fd, info) ? round_trip_of(info) : std::chrono::microseconds(0);
}

std::uint64_t bytes_on_path(int fd) {
  tcp_info info{};
  return look(fd, info) ? window_of(info) : 0;
}

std::string congestion_control(int fd) {
  std::array<char, 17> name{};  // the kernel's TCP_CA_NAME_MAX, and an end
  socklen_t size = name.size() - 1;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), &size) != 0) return {};
  return name.data();
}

bool withstands_loss(int fd) { return congestion_control(fd).starts_with("bbr"); }

Traffic traffic_of(int fd) {
  tcp_info info{};
  int unread = 0;
  int outstanding = 0;
  if (!look(fd, info) || ::ioctl(fd, FIONREAD, &unread) != 0 || ::ioctl(fd, SIOCOUTQ, &outstanding) != 0)
    return {};
  const auto waiting = static_cast<std::uint64_t>(outstanding);
  return {.acknowledged = info.tcpi_bytes_acked,
          .received = info.tcpi_bytes_received,
          .in_flight = waiting - std::min<std::uint64_t>(waiting, info.tcpi_notsent_bytes),
          .unsent = info.tcpi_notsent_bytes,
          .window = info.tcpi_snd_wnd,
          .unread = static_cast<std::uint64_t>(unread),
          .on_path = std::max<std::uint64_t>(window_of(info), info.tcpi_rcv_space),
          .waits_for_buffers = waits_for_buffers(info),
          .round_trip = round_trip_of(info)};
}

}  // namespace p2p::socket
