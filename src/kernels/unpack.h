// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/copy.h"

namespace p2p::kernels {

/// `size` bytes at `source` of a pool are the bytes of a message from `destination` on. Laid out as UNPACK
/// devices list them.
struct Fragment {
  std::uint32_t source = 0;
  std::uint32_t size = 0;
  std::uint64_t destination = 0;
};
static_assert(sizeof(Fragment) == 16);

/// A final place: `size` bytes of a message, from `offset` on, belong at `data`.
struct Block {
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
  std::byte* data = nullptr;
};

/// True if every fragment lies within `message_bytes` and their sizes add up to it. Two fragments that
/// overlap would leave a gap elsewhere; this does not look for that.
bool fills(std::span<const Fragment> fragments, std::uint64_t message_bytes);

/// Appends the copies that put all fragments straight into the blocks: one pass, any order, size and
/// alignment, neighbours merged. Blocks ascend by offset and do not overlap; bytes that fall between them are
/// left out. `copy_on_host` or `launch_copy` does the copies. Returns their bytes.
std::uint64_t plan_unpack(const std::byte* pool, std::span<const Fragment> fragments,
                          std::span<const Block> blocks, std::vector<CopyBlock>& copies);

}  // namespace p2p::kernels
