// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/block_digest.h"

#define XXH_INLINE_ALL  // NOLINT(readability-identifier-naming): xxhash looks for it
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <utility>

namespace p2p {

static_assert(std::endian::native == std::endian::little,
              "digests of blocks are hashed as they lie in memory");

std::uint64_t digest_of_blocks(std::span<const std::uint64_t> blocks) {
  return XXH64(blocks.data(), blocks.size_bytes(), 0);
}

void BlockDigest::add(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    std::size_t taken = kDigestBlock;
    if (filled_ == 0 && bytes.size() >= kDigestBlock) {
      blocks_.push_back(XXH64(bytes.data(), kDigestBlock, 0));
    } else {
      taken = std::min(bytes.size(), kDigestBlock - filled_);
      std::ranges::copy(bytes.first(taken), part_.begin() + static_cast<std::ptrdiff_t>(filled_));
      filled_ += taken;
      if (filled_ == kDigestBlock) blocks_.push_back(XXH64(part_.data(), std::exchange(filled_, 0), 0));
    }
    bytes = bytes.subspan(taken);
  }
}

std::uint64_t BlockDigest::value() {
  if (filled_ != 0) blocks_.push_back(XXH64(part_.data(), std::exchange(filled_, 0), 0));
  return digest_of_blocks(blocks_);
}

}  // namespace p2p
