// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/block_hash.h"

#define XXH_NO_PREFETCH  // NOLINT(readability-identifier-naming): it goes past the block's end
#define XXH_INLINE_ALL   // NOLINT(readability-identifier-naming): xxhash looks for it
#include <xxhash.h>

#include <algorithm>

namespace p2p {

void fetch_block(const std::byte* block, std::size_t bytes) {
  constexpr std::size_t kLine = 64;
  for (std::size_t i = 0; i < std::min(bytes, kDigestBlock); i += kLine) __builtin_prefetch(block + i, 0, 2);
}

void hash_blocks_by_any(const std::byte* blocks, std::size_t count, std::uint64_t* hashes) {
  for (std::size_t i = 0; i != count; ++i) {
    hashes[i] = XXH3_64bits(blocks + i * kDigestBlock, kDigestBlock);
  }
}

void hash_blocks(const std::byte* blocks, std::size_t count, std::uint64_t* hashes) {
#if defined(__x86_64__)
  static const bool wide = __builtin_cpu_supports("avx2") != 0;
  if (wide) return hash_blocks_by_avx2(blocks, count, hashes);
#endif
  hash_blocks_by_any(blocks, count, hashes);
}

}  // namespace p2p
