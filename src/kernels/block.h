// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace p2p::kernels {

/// One contiguous run to copy. Both ends are memory that the device reaches: its own, a peer device's, pinned
/// host memory. Any size, any alignment.
struct CopyBlock {
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
  std::uint64_t bytes = 0;
};

/// Equal blocks in rows, which the device counts out by itself. Strides are bytes from start to start, of
/// two's complement.
struct CopyRows {
  CopyBlock first{};
  std::uint64_t count = 1;  ///< blocks of a row
  std::uint64_t source_stride = 0;
  std::uint64_t target_stride = 0;
  std::uint64_t rows = 1;
  std::uint64_t source_row = 0;
  std::uint64_t target_row = 0;
};

/// So many blocks travel with the launch itself, which spares the device a read over PCIe.
inline constexpr std::size_t kInlineBlocks = 64;

/// How the end of a launch is told to a host that polls.
struct Signal {
  std::uint32_t* word = nullptr;  ///< pinned host memory; null: no signal
  std::uint32_t value = 0;        ///< stored there once all bytes are visible to hosts and devices

  /// Device memory, zero before the launch and again after it; for one launch at a time.
  std::uint32_t* arrivals = nullptr;
};

}  // namespace p2p::kernels
