// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/anywhere.h"
#include "kernels/block.h"

/// Rows of short blocks, word by word: the threads count through the words of all blocks, so that none idles
/// behind the end of a block and each has several loads under way. Read by the device's compiler as well.
namespace p2p::kernels::rows {

/// Longer blocks fill a warp by themselves.
inline constexpr std::uint64_t kShort = 2048;

/// Words that a thread has under way.
inline constexpr unsigned kUnderWay = 8;

/// The widest word, of 16, 8 or 4 bytes, that both ends of all blocks are aligned to; 0: none, or the blocks
/// are long, or their words are more than 32 bits count.
P2P_ANYWHERE inline unsigned word_of(const CopyRows& all) {
  if (all.first.bytes > kShort || (all.count * all.rows * all.first.bytes) >> 32 != 0) return 0;
  const std::uint64_t ends = reinterpret_cast<std::uint64_t>(all.first.source) |
                             reinterpret_cast<std::uint64_t>(all.first.target) | all.first.bytes;
  const std::uint64_t places = ends | all.source_stride | all.target_stride | all.source_row | all.target_row;
  for (unsigned word = 16; word != 2; word /= 2) {
    if (places % word == 0) return word;
  }
  return 0;
}

/// All words that thread number `thread` of so many copies.
template <class Word>
P2P_ANYWHERE void copy(const CopyRows& all, std::uint32_t thread, std::uint32_t threads) {
  const auto wide = static_cast<std::uint32_t>(all.first.bytes / sizeof(Word));
  const auto count = static_cast<std::uint32_t>(all.count);
  const auto words = wide * count * static_cast<std::uint32_t>(all.rows);
  for (std::uint64_t first = thread; first < words; first += std::uint64_t{kUnderWay} * threads) {
    Word word[kUnderWay]{};
    Word* to[kUnderWay]{};
    P2P_UNROLL
    for (unsigned k = 0; k < kUnderWay; ++k) {
      const std::uint64_t at = first + std::uint64_t{k} * threads;
      if (at >= words) continue;
      const std::uint32_t block = static_cast<std::uint32_t>(at) / wide;
      const std::uint64_t within = (static_cast<std::uint32_t>(at) - block * wide) * sizeof(Word);
      const std::uint64_t row = block / count, place = block - row * count;
      word[k] = *reinterpret_cast<const Word*>(all.first.source + row * all.source_row +
                                               place * all.source_stride + within);
      to[k] = reinterpret_cast<Word*>(all.first.target + row * all.target_row + place * all.target_stride +
                                      within);
    }
    P2P_UNROLL
    for (unsigned k = 0; k < kUnderWay; ++k) {
      if (to[k] != nullptr) *to[k] = word[k];
    }
  }
}

}  // namespace p2p::kernels::rows
