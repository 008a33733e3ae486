// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "block_list.h"

#include <utility>

#include "pattern.h"

namespace p2p::perf {

std::vector<iovec> shuffled_blocks(std::uint64_t address, std::size_t count, std::size_t size,
                                   std::uint64_t seed) {
  std::vector<iovec> list;
  list.reserve(count);
  for (std::size_t i = 0; i < count; ++i) list.push_back({reinterpret_cast<void*>(address + i * size), size});
  for (std::size_t i = count; i > 1; --i) std::swap(list[i - 1], list[mix(seed + i) % i]);
  return list;
}

BlockRing::BlockRing(std::vector<iovec> blocks, std::size_t a_call)
    : blocks_(std::move(blocks)), window_(a_call) {}

std::span<iovec> BlockRing::next() {
  for (std::size_t i = 0; i < window_.size(); ++i) window_[i] = blocks_[(at_ + i) % blocks_.size()];
  window_[0].iov_base = static_cast<std::byte*>(window_[0].iov_base) + offset_;
  window_[0].iov_len -= offset_;
  return window_;
}

void BlockRing::advance(std::size_t bytes) {
  offset_ += bytes;
  while (offset_ >= blocks_[at_].iov_len) {
    offset_ -= blocks_[at_].iov_len;
    at_ = (at_ + 1) % blocks_.size();
  }
}

}  // namespace p2p::perf
