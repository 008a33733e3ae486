// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "p2p/result.h"

namespace p2p::perf {

/// Owns memory of a GPU. The driver is looked for at run time, so that p2p-perf needs no CUDA to be built or
/// to run without a GPU.
class GpuMemory {
 public:
  static Result<GpuMemory> allocate(int device, std::size_t size);

  GpuMemory() = default;
  GpuMemory(GpuMemory&& other) noexcept
      : device_(other.device_), address_(std::exchange(other.address_, 0)) {}
  GpuMemory& operator=(GpuMemory&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(address_, other.address_);
    return *this;
  }
  ~GpuMemory();

  explicit operator bool() const { return address_ != 0; }
  std::byte* data() const;

  /// Copies to it from its start on; the bytes are there when the call returns.
  Status store(std::span<const std::byte> bytes) const;
  Status load(std::span<std::byte> bytes) const;

 private:
  GpuMemory(int device, std::uint64_t address) : device_(device), address_(address) {}
  int device_ = -1;
  std::uint64_t address_ = 0;
};

}  // namespace p2p::perf
