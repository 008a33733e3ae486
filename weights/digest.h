// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstddef>
#include <cstdint>

namespace p2p::weights {

/// XXH3, 64 bits, of bytes that are added in order. Finds accidents, not forgeries.
class Digest {
 public:
  Digest() { XXH3_64bits_reset(&state_); }
  void add(const void* data, std::size_t size) { XXH3_64bits_update(&state_, data, size); }
  std::uint64_t value() const { return XXH3_64bits_digest(&state_); }

 private:
  XXH3_state_t state_;
};

}  // namespace p2p::weights
