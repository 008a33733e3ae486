// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "softnet/lender.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "softnet/socket.h"

namespace softnet {
namespace {

// What a process may have without privileges, and a message of the largest usual size.
constexpr int kPipeBytes = 1 << 20;

}  // namespace

std::unique_ptr<Lender> Lender::open() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_NONBLOCK | O_CLOEXEC) != 0) return nullptr;
  auto lender = std::make_unique<Lender>();
  lender->out_ = UniqueFd(ends[0]);
  lender->in_ = UniqueFd(ends[1]);
  static_cast<void>(::fcntl(ends[1], F_SETPIPE_SZ, kPipeBytes));  // a smaller one does as well
  return lender;
}

void Lender::fill(std::span<std::byte> rest) {
  while (held_ != rest.size()) {
    const iovec piece{rest.data() + held_, rest.size() - held_};
    const ssize_t taken = ::vmsplice(in_.get(), &piece, 1, SPLICE_F_NONBLOCK);
    if (taken <= 0) return;
    held_ += static_cast<std::size_t>(taken);
  }
}

long Lender::send(int fd, std::span<std::byte> rest, std::size_t limit) {
  if (held_ == 0) fill(rest);
  if (held_ == 0) {  // the system does not lend: then it copies
    iovec piece{rest.data(), std::min(rest.size(), limit)};
    return send_some(fd, {&piece, 1});
  }
  const long moved = splice_some(out_.get(), fd, std::min(held_, limit));
  if (moved > 0) held_ -= static_cast<std::size_t>(moved);
  return moved;
}

}  // namespace softnet
