// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "p2p/result.h"

namespace p2p::perf {

/// How memory of a GPU is made.
struct GpuKind {
  int device = -1;                ///< -1: the host's
  std::uint64_t chunk_bytes = 0;  ///< mapped with cuMemMap in chunks of so many bytes; 0: from cuMemAlloc
  bool exportable = true;         ///< the chunks can be given to other processes

  /// "host", "cuda:N", "mapped:N:MIB" (chunks as PyTorch's expandable segments have them) or "private:N:MIB"
  /// (chunks that no other process can be given).
  static Result<GpuKind> parse(std::string_view place);
};

/// Owns memory of a GPU. The driver is looked for at run time, so that p2p-perf needs no CUDA to be built or
/// to run without a GPU.
class GpuMemory {
 public:
  static Result<GpuMemory> allocate(const GpuKind& kind, std::size_t size);

  GpuMemory() = default;
  GpuMemory(GpuMemory&& other) noexcept
      : device_(other.device_),
        address_(std::exchange(other.address_, 0)),
        chunks_(std::move(other.chunks_)) {}
  GpuMemory& operator=(GpuMemory&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(address_, other.address_);
    std::swap(chunks_, other.chunks_);
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
  Status map(const GpuKind& kind, std::size_t count);

  struct Chunks {
    std::uint64_t bytes = 0;              // of each
    std::uint64_t reserved = 0;           // bytes of addresses
    std::vector<std::uint64_t> memories;  // that are mapped
  };
  int device_ = -1;
  std::uint64_t address_ = 0;
  Chunks chunks_;  // none from cuMemAlloc
};

}  // namespace p2p::perf
