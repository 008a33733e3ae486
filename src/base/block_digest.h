// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/block_hash.h"

namespace p2p {

/// The digest of `size` bytes whose blocks have these digests. See p2p/digest.h.
std::uint64_t digest_of_blocks(std::span<const std::uint64_t> blocks, std::uint64_t size);

/// The digest of bytes of host memory, which are added in order.
class BlockDigest {
 public:
  void add(std::span<const std::byte> bytes);

  /// Of memory that may have become bad. False: it has, and the digest is of no use.
  bool add_guarded(std::span<const std::byte> bytes);

  /// Those of the blocks so far; the last one is filled up, and nothing may be added any more.
  std::span<const std::uint64_t> blocks();
  std::uint64_t value();

 private:
  template <class Hash, class Copy>
  bool add_by(std::span<const std::byte> bytes, Hash hash, Copy copy);
  void end_part();

  std::vector<std::uint64_t> blocks_;
  std::array<std::byte, kDigestBlock> part_;  // a block that comes in parts
  std::size_t filled_ = 0;
  std::uint64_t size_ = 0;
};

}  // namespace p2p
