// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "p2p/api.h"
#include "p2p/memory.h"
#include "p2p/result.h"

namespace tcpx {

/// Tells another process of memory registered with a session: what to name in messages of one's own. It
/// grants no access: bytes move only where both sides post.
///
/// Byte layout, little endian: 0 magic u32; 4 version u16; 6 kind u8; 7 zero; 8 memory id u64; 16 address
/// u64; 24 size u64; 32 device i32; 36 zero u32.
struct P2P_API TcpxMemoryDescriptor {
  static constexpr std::size_t kBytes = 40;

  std::uint64_t mem_id = 0;
  std::uint64_t address = 0;
  std::uint64_t size = 0;  ///< bytes
  p2p::MemoryPlace place;

  std::array<std::byte, kBytes> serialize() const;

  /// kInvalidArgument unless `bytes` are what `serialize` could have made.
  static p2p::Result<TcpxMemoryDescriptor> deserialize(std::span<const std::byte> bytes);
};

}  // namespace tcpx
