// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/unpack.h"

#include <algorithm>

namespace p2p::kernels {

bool fills(std::span<const Fragment> fragments, std::uint64_t message_bytes) {
  std::uint64_t left = message_bytes;
  for (const Fragment& fragment : fragments) {
    if (fragment.destination > message_bytes || fragment.size > message_bytes - fragment.destination)
      return false;
    if (fragment.size > left) return false;
    left -= fragment.size;
  }
  return left == 0;
}

std::uint64_t plan_unpack(const std::byte* pool, std::span<const Fragment> fragments,
                          std::span<const Block> blocks, std::vector<CopyBlock>& copies) {
  std::uint64_t planned = 0;
  const std::size_t first = copies.size();
  const auto append = [&](const std::byte* source, std::byte* target, std::uint64_t bytes) {
    planned += bytes;
    if (copies.size() != first) {
      CopyBlock& last = copies.back();
      if (last.source + last.bytes == source && last.target + last.bytes == target) {
        last.bytes += bytes;
        return;
      }
    }
    copies.push_back({source, target, bytes});
  };
  for (const Fragment& fragment : fragments) {
    const std::uint64_t end = fragment.destination + fragment.size;
    auto block = std::ranges::upper_bound(blocks, fragment.destination, {}, &Block::offset);
    if (block != blocks.begin()) --block;
    for (; block != blocks.end() && block->offset < end; ++block) {
      const std::uint64_t from = std::max(fragment.destination, block->offset);
      const std::uint64_t to = std::min(end, block->offset + block->size);
      if (from >= to) continue;
      append(pool + fragment.source + (from - fragment.destination), block->data + (from - block->offset),
             to - from);
    }
  }
  return planned;
}

}  // namespace p2p::kernels
