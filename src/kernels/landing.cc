// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/landing.h"

#include <algorithm>
#include <atomic>

namespace p2p::kernels {

int Landing::start(std::span<const CopyBlock> copies) {
  if (device_.stream == nullptr) {
    copy_on_host(copies);
    ++started_;
    return 0;
  }
  auto* const slots = reinterpret_cast<CopyBlock*>(device_.pinned + 64);
  CopyBlock* const slot = slots + started_ % kLists * kMaxCopies;
  CopyList list{.blocks = slot, .count = copies.size()};
  for (std::size_t index = 0; index < copies.size(); ++index) {
    slot[index] = copies[index];
    list.total += copies[index].bytes;
    list.largest = std::max(list.largest, copies[index].bytes);
  }
  const Signal signal{reinterpret_cast<std::uint32_t*>(device_.pinned),
                      static_cast<std::uint32_t>(started_ + 1), device_.arrivals};
  const int code = launch_copy(list, {}, signal, device_.stream);
  if (code == 0) ++started_;
  return code;
}

std::uint64_t Landing::finished() const {
  if (device_.stream == nullptr) return started_;
  auto& word = *reinterpret_cast<std::uint32_t*>(device_.pinned);
  const std::uint32_t done = std::atomic_ref(word).load(std::memory_order_acquire);
  // The word counts modulo 2^32 and is at most kLists behind.
  return started_ - (static_cast<std::uint32_t>(started_) - done);
}

}  // namespace p2p::kernels
