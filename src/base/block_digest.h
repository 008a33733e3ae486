// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace p2p {

/// Bytes of a block of a digest.
inline constexpr std::size_t kDigestBlock = 4096;

/// The digest of `size` bytes whose blocks have these digests. See p2p/digest.h.
std::uint64_t digest_of_blocks(std::span<const std::uint64_t> blocks, std::uint64_t size);

/// The digest of bytes of host memory, which are added in order.
class BlockDigest {
 public:
  void add(std::span<const std::byte> bytes);
  std::uint64_t value();

 private:
  void end_part();

  std::vector<std::uint64_t> blocks_;
  std::array<std::byte, kDigestBlock> part_;  // a block that comes in parts
  std::size_t filled_ = 0;
  std::uint64_t size_ = 0;
};

}  // namespace p2p
