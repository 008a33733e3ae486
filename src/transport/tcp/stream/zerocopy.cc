// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/stream/zerocopy.h"

#include "drivers/socket/socket.h"

namespace p2p::tcp {

void Zerocopy::enable(int fd, std::size_t least_bytes) {
  least_bytes_ = least_bytes;
  on_ = least_bytes != 0 && socket::allow_zerocopy(fd);
}

std::uint64_t Zerocopy::count_send() {
  done_.push_back(false);
  return released_ + done_.size();
}

Status Zerocopy::collect(int fd) {
  while (outstanding()) {
    const Result<socket::ZerocopyRange> range = socket::next_zerocopy_range(fd);
    if (!range) return tl::unexpected(range.error());
    if (range->count == 0) break;
    if (range->copied) on_ = false;
    // The kernel counts from 0 in 32 bits and wraps.
    const auto first = static_cast<std::uint32_t>(range->first - static_cast<std::uint32_t>(released_));
    for (std::uint64_t i = first; i < std::uint64_t{first} + range->count && i < done_.size(); ++i)
      done_[i] = true;
    while (!done_.empty() && done_.front()) {
      done_.pop_front();
      ++released_;
    }
  }
  return {};
}

}  // namespace p2p::tcp
