// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/block_digest.h"

#define XXH_INLINE_ALL  // NOLINT(readability-identifier-naming): xxhash looks for it
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "base/guarded_copy.h"

namespace p2p {

static_assert(std::endian::native == std::endian::little,
              "digests of blocks are hashed as they lie in memory");

namespace {

/// Where they lie. Where the system has to read them each is copied first, and stays in the cache.
bool hash_guarded(std::span<const std::byte> blocks, std::uint64_t* hashes) {
  struct Work {
    std::span<const std::byte> blocks;
    std::uint64_t* hashes;
  } work{blocks, hashes};
  const auto hash = [](void* argument) {
    const auto& [all, out] = *static_cast<const Work*>(argument);
    hash_blocks(all.data(), all.size() / kDigestBlock, out);
  };
  if (const auto read = guarded_read(blocks, hash, &work)) return *read;
  std::array<std::byte, kDigestBlock> copy;  // NOLINT(*-member-init): written before it is read
  for (; !blocks.empty(); blocks = blocks.subspan(kDigestBlock)) {
    if (!guarded_copy(copy.data(), blocks.data(), kDigestBlock)) return false;
    hash_blocks(copy.data(), 1, hashes++);
  }
  return true;
}

}  // namespace

std::uint64_t digest_of_blocks(std::span<const std::uint64_t> blocks, std::uint64_t size) {
  return XXH3_64bits_withSeed(blocks.data(), blocks.size_bytes(), size);
}

// `hash(blocks, hashes)` hashes whole ones where they lie, `copy(to, from)` takes parts; false ends it.
template <class Hash, class Copy>
bool BlockDigest::add_by(std::span<const std::byte> bytes, Hash hash, Copy copy) {
  size_ += bytes.size();
  while (!bytes.empty()) {
    std::size_t taken = 0;
    if (filled_ == 0 && bytes.size() >= kDigestBlock) {
      const std::size_t count = bytes.size() / kDigestBlock, before = blocks_.size();
      taken = count * kDigestBlock;
      blocks_.resize(before + count);
      if (!hash(bytes.first(taken), blocks_.data() + before)) return false;
    } else {
      taken = std::min(bytes.size(), kDigestBlock - filled_);
      if (!copy(part_.data() + filled_, bytes.first(taken))) return false;
      filled_ += taken;
      if (filled_ == kDigestBlock) end_part();
    }
    bytes = bytes.subspan(taken);
  }
  return true;
}

void BlockDigest::add(std::span<const std::byte> bytes) {
  const auto hash = [](std::span<const std::byte> whole, std::uint64_t* hashes) {
    hash_blocks(whole.data(), whole.size() / kDigestBlock, hashes);
    return true;
  };
  const auto copy = [](std::byte* to, std::span<const std::byte> from) {
    std::ranges::copy(from, to);
    return true;
  };
  add_by(bytes, hash, copy);
}

bool BlockDigest::add_guarded(std::span<const std::byte> bytes) {
  const auto copy = [](std::byte* to, std::span<const std::byte> from) {
    return guarded_copy(to, from.data(), from.size());
  };
  return add_by(bytes, hash_guarded, copy);
}

void BlockDigest::end_part() {
  std::fill(part_.begin() + static_cast<std::ptrdiff_t>(std::exchange(filled_, 0)), part_.end(), std::byte{});
  hash_blocks(part_.data(), 1, &blocks_.emplace_back());
}

std::span<const std::uint64_t> BlockDigest::blocks() {
  if (filled_ != 0) end_part();
  return blocks_;
}

std::uint64_t BlockDigest::value() { return digest_of_blocks(blocks(), size_); }

}  // namespace p2p
