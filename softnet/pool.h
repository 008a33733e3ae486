// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>

#include "drivers/cuda/memory.h"

namespace softnet {

/// An area of memory for all comms: where receives land on an UNPACK device until the host has copied them
/// (hosts may rely on a single base address), or where sends of device memory pass through. Pinned if devices
/// are to reach it. Thread-safe; lives as long as the process.
class Pool {
 public:
  struct Extent {
    std::uint32_t offset = 0;
    std::uint32_t size = 0;  ///< bytes, whole pages
  };

  /// Made at the first call; null if the memory cannot be had.
  static Pool* of_receives();
  static Pool* of_sends();

  std::byte* base() const { return base_; }
  std::size_t size() const { return size_; }

  /// Room for `bytes`, or none until others give theirs back.
  std::optional<Extent> take(std::size_t bytes);
  void give_back(Extent extent);

 private:
  Pool(std::byte* base, std::size_t size);
  explicit Pool(p2p::cuda::HostBuffer pinned);
  static Pool* make();
  static Pool* import_lazily();
  void vanish();

  p2p::cuda::HostBuffer pinned_;  // if devices are to reach it
  std::byte* base_;
  std::size_t size_;
  std::mutex mutex_;
  std::map<std::uint32_t, std::uint32_t> free_;  // offset to size, neighbours merged
};

}  // namespace softnet
