// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/block_hash.h"

// Compiled for AVX2 where there is x86 (CMakeLists.txt): it includes nothing whose code other files share.
#if defined(__x86_64__)

#define XXH_NO_PREFETCH  // NOLINT(readability-identifier-naming): it goes past the block's end
#define XXH_INLINE_ALL   // NOLINT(readability-identifier-naming): xxhash looks for it
#include <xxhash.h>

namespace p2p {

void hash_blocks_by_avx2(const std::byte* blocks, std::size_t count, std::uint64_t* hashes) {
  for (std::size_t i = 0; i != count; ++i) {
    hashes[i] = XXH3_64bits(blocks + i * kDigestBlock, kDigestBlock);
  }
}

}  // namespace p2p

#endif
