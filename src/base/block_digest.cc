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

std::uint64_t digest_of_blocks(std::span<const std::uint64_t> blocks, std::uint64_t size) {
  return XXH3_64bits_withSeed(blocks.data(), blocks.size_bytes(), size);
}

void BlockDigest::add(std::span<const std::byte> bytes) {
  size_ += bytes.size();
  while (!bytes.empty()) {
    std::size_t taken = kDigestBlock;
    if (filled_ == 0 && bytes.size() >= kDigestBlock) {
      blocks_.push_back(XXH3_64bits(bytes.data(), kDigestBlock));
    } else {
      taken = std::min(bytes.size(), kDigestBlock - filled_);
      std::ranges::copy(bytes.first(taken), part_.begin() + static_cast<std::ptrdiff_t>(filled_));
      filled_ += taken;
      if (filled_ == kDigestBlock) end_part();
    }
    bytes = bytes.subspan(taken);
  }
}

void BlockDigest::end_part() {
  std::fill(part_.begin() + static_cast<std::ptrdiff_t>(std::exchange(filled_, 0)), part_.end(), std::byte{});
  blocks_.push_back(XXH3_64bits(part_.data(), kDigestBlock));
}

std::uint64_t BlockDigest::value() {
  if (filled_ != 0) end_part();
  return digest_of_blocks(blocks_, size_);
}

}  // namespace p2p
