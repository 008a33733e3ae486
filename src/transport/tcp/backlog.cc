// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/backlog.h"

#include <algorithm>

#include "drivers/socket/round_trip.h"
#include "drivers/socket/socket.h"

namespace p2p::tcp {
namespace {

constexpr std::uint64_t kLeast = 32U << 10;
constexpr std::uint64_t kMost = 4U << 20;
// Of what is on its way, which takes a round trip.
constexpr std::uint64_t kPart = 4;

}  // namespace

std::uint64_t Backlog::bytes_for(std::uint64_t on_path) { return std::clamp(on_path / kPart, kLeast, kMost); }

void Backlog::start(int fd, std::chrono::microseconds round_trip) {
  fd_ = fd;
  round_trip_ = round_trip;
}

void Backlog::follow() {
  const auto now = Clock::now();
  if (now < next_) return;
  next_ = now + round_trip_;
  const std::uint64_t bytes = bytes_for(socket::bytes_on_path(fd_));
  if (bytes == bytes_) return;
  bytes_ = bytes;
  socket::limit_unsent(fd_, static_cast<int>(bytes));
}

}  // namespace p2p::tcp
