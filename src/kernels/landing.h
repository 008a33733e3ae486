// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/copy.h"

namespace p2p::kernels {

/// Does lists of copies in the order of `start` and tells how many are done: on the host at once, on a device
/// by one launch a list on one stream. Nothing is allocated after construction. One thread at a time.
class Landing {
 public:
  /// Lists under way at most.
  static constexpr std::size_t kLists = 16;
  static constexpr std::size_t kMaxCopies = 4096;
  static constexpr std::size_t kPinnedBytes = 64 + kLists * kMaxCopies * sizeof(CopyBlock);

  /// What a device needs of its owner, who keeps it until all lists are done.
  struct Device {
    void* stream = nullptr;             ///< cudaStream_t, used for nothing else
    std::byte* pinned = nullptr;        ///< kPinnedBytes of pinned host memory, zeroed
    std::uint32_t* arrivals = nullptr;  ///< one word of device memory, zeroed
  };

  Landing() = default;
  explicit Landing(const Device& device) : device_(device) {}

  bool full() const { return started_ - finished() == kLists; }

  /// Not while full. At most kMaxCopies. Returns 0 or the CUDA runtime's code.
  int start(std::span<const CopyBlock> copies);

  std::uint64_t started() const { return started_; }

  /// How many lists, from the first one on, have landed. Never blocks.
  std::uint64_t finished() const;

 private:
  Device device_;
  std::uint64_t started_ = 0;
};

}  // namespace p2p::kernels
