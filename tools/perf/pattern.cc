// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "pattern.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace p2p::perf {
namespace {

constexpr std::size_t kWord = sizeof(std::uint64_t);

/// Calls visit(offset, size, word bytes) for each piece of at most one word of the sequence.
template <class Visitor>
void for_each_word(std::size_t size, std::uint64_t seed, std::uint64_t position, Visitor&& visit) {
  for (std::size_t offset = 0; offset < size;) {
    const std::uint64_t at = position + offset;
    const std::size_t within = at % kWord;
    const std::size_t piece = std::min(kWord - within, size - offset);
    std::array<std::byte, kWord> word;
    const std::uint64_t value = mix(seed + at / kWord);
    std::memcpy(word.data(), &value, kWord);
    // The constant lets the compiler make one store or compare of it.
    const bool go_on =
        piece == kWord ? visit(offset, kWord, word.data()) : visit(offset, piece, word.data() + within);
    if (!go_on) return;
    offset += piece;
  }
}

}  // namespace

std::uint64_t mix(std::uint64_t value) {
  value = (value + 0x9e3779b97f4a7c15u) * 0xff51afd7ed558ccdu;
  value ^= value >> 32;
  value *= 0xc4ceb9fe1a85ec53u;
  return value ^ (value >> 29);
}

void fill_pattern(std::span<std::byte> bytes, std::uint64_t seed, std::uint64_t position) {
  for_each_word(bytes.size(), mix(seed), position,
                [&](std::size_t offset, std::size_t size, const std::byte* word) {
                  std::memcpy(bytes.data() + offset, word, size);
                  return true;
                });
}

std::optional<std::size_t> find_difference(std::span<const std::byte> bytes, std::uint64_t seed,
                                           std::uint64_t position) {
  std::optional<std::size_t> difference;
  for_each_word(bytes.size(), mix(seed), position,
                [&](std::size_t offset, std::size_t size, const std::byte* word) {
                  if (std::memcmp(bytes.data() + offset, word, size) == 0) return true;
                  for (std::size_t i = 0; !difference && i < size; ++i) {
                    if (bytes[offset + i] != word[i]) difference = offset + i;
                  }
                  return false;
                });
  return difference;
}

std::optional<std::size_t> find_nonzero(std::span<const std::byte> bytes) {
  const auto found = std::find_if(bytes.begin(), bytes.end(), [](std::byte b) { return b != std::byte{}; });
  if (found == bytes.end()) return std::nullopt;
  return static_cast<std::size_t>(found - bytes.begin());
}

}  // namespace p2p::perf
