// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/unique_fd.h"
#include "p2p/result.h"

namespace p2p::cuda {

/// Owns a DMA-BUF over a range of device memory, by which a NIC's driver can reach it. The memory stays its
/// owner's.
class DmaBuffer {
 public:
  /// kUnavailable where the driver or the device has no such thing.
  static Result<DmaBuffer> open(const std::byte* data, std::size_t bytes);

  int fd() const { return fd_.get(); }
  std::uint64_t offset() const { return offset_; }  ///< bytes, of `data` within it

 private:
  DmaBuffer(UniqueFd fd, std::uint64_t offset) : fd_(std::move(fd)), offset_(offset) {}

  UniqueFd fd_;
  std::uint64_t offset_;
};

}  // namespace p2p::cuda
