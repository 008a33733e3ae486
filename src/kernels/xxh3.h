// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/anywhere.h"

/// XXH3 (64 bits, seed 0, its own secret) of one whole block of kHashedBlock bytes, in four parts that go
/// side by side. Of the eight sums that it keeps, part `i` has 2 i and 2 i + 1. Read by the device's compiler
/// as well. The numbers are those of the specification of XXH3: github.com/Cyan4973/xxHash,
/// doc/xxhash_spec.md.
namespace p2p::kernels::xxh3 {

using Word = std::uint64_t;

inline constexpr Word kShortPrime1 = 0x9E3779B1, kShortPrime2 = 0x85EBCA77, kShortPrime3 = 0xC2B2AE3D;
inline constexpr Word kLongPrime1 = 0x9E3779B185EBCA87, kLongPrime2 = 0xC2B2AE3D27D4EB4F,
                      kLongPrime3 = 0x165667B19E3779F9, kLongPrime4 = 0x85EBCA77C2B2AE63,
                      kLongPrime5 = 0x27D4EB2F165667C5;

inline constexpr unsigned kParts = 4;
inline constexpr unsigned kStripe = 64;   ///< bytes
inline constexpr unsigned kStripes = 16;  ///< of a row, after which the sums are scrambled
inline constexpr unsigned kRows = 4;      ///< of a block
inline constexpr unsigned kSecretWords = 24;

struct Secret {
  Word words[kSecretWords];

  /// Eight bytes from byte `at` on.
  P2P_ANYWHERE constexpr Word from(unsigned at) const {
    const unsigned word = at / 8, shift = at % 8 * 8;
    return shift == 0 ? words[word] : words[word] >> shift | words[word + 1] << (64 - shift);
  }
};

inline constexpr Secret kSecret{
    {0xBE4BA423396CFEB8, 0x1CAD21F72C81017C, 0xDB979083E96DD4DE, 0x1F67B3B7A4A44072, 0x78E5C0CC4EE679CB,
     0x2172FFCC7DD05A82, 0x8E2443F7744608B8, 0x4C263A81E69035E0, 0xCB00C391BB52283C, 0xA32E531B8B65D088,
     0x4EF90DA297486471, 0xD8ACDEA946EF1938, 0x3F349CE33F76FAA8, 0x1D4F0BC7C7BBDCF9, 0x3159B4CD4BE0518A,
     0x647378D9C97E9FC8, 0xC3EBD33483ACC5EA, 0xEB6313FAFFA081C5, 0x49DAF0B751DD0D17, 0x9E68D429265516D3,
     0xFCA1477D58BE162B, 0xCE31D07AD1B8F88F, 0x280416958F3ACB45, 0x7E404BBBCAFBD7AF}};

/// A part's sixteen bytes of a stripe, or its two sums.
struct Pair {
  Word first = 0;
  Word second = 0;
};

P2P_ANYWHERE constexpr Pair first_sums(unsigned part) {
  switch (part) {
    case 0: return {kShortPrime3, kLongPrime1};
    case 1: return {kLongPrime2, kLongPrime3};
    case 2: return {kLongPrime4, kShortPrime2};
    default: return {kLongPrime5, kShortPrime1};
  }
}

/// The keys of a part of stripe `stripe` of `row`; the last one of a block has its own.
P2P_ANYWHERE constexpr Pair keys(const Secret& secret, unsigned row, unsigned stripe, unsigned part) {
  constexpr unsigned kLast = kSecretWords * 8 - kStripe - 7;
  const unsigned at = (row + 1 == kRows && stripe + 1 == kStripes ? kLast : stripe * 8) + part * 16;
  return {secret.from(at), secret.from(at + 8)};
}

P2P_ANYWHERE constexpr void add(Pair& sums, const Pair& data, const Pair& keys) {
  const Word one = data.first ^ keys.first, two = data.second ^ keys.second;
  sums.first += data.second + (one & 0xFFFFFFFF) * (one >> 32);
  sums.second += data.first + (two & 0xFFFFFFFF) * (two >> 32);
}

P2P_ANYWHERE constexpr Word scrambled(Word sum, Word key) { return (sum ^ sum >> 47 ^ key) * kShortPrime1; }

/// After each row but the last.
P2P_ANYWHERE constexpr void scramble(Pair& sums, const Secret& secret, unsigned part) {
  constexpr unsigned kFrom = kSecretWords * 8 - kStripe;
  sums.first = scrambled(sums.first, secret.from(kFrom + part * 16));
  sums.second = scrambled(sums.second, secret.from(kFrom + part * 16 + 8));
}

/// What a part's sums add to the hash.
P2P_ANYWHERE inline Word folded(const Pair& sums, const Secret& secret, unsigned part) {
  constexpr unsigned kFrom = 11;
  const Word one = sums.first ^ secret.from(kFrom + part * 16),
             two = sums.second ^ secret.from(kFrom + part * 16 + 8);
#ifdef __CUDA_ARCH__
  return one * two ^ __umul64hi(one, two);
#else
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(one) * two;
  return static_cast<Word>(product) ^ static_cast<Word>(product >> 64);
#endif
}

/// The hash of a block of `bytes`, of the sum of what its parts add.
P2P_ANYWHERE constexpr Word finish(Word sum, Word bytes) {
  Word hash = sum + bytes * kLongPrime1;
  hash = (hash ^ hash >> 37) * 0x165667919E3779F9;
  return hash ^ hash >> 32;
}

}  // namespace p2p::kernels::xxh3

#undef P2P_ANYWHERE
