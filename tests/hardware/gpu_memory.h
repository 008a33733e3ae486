// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "p2p/result.h"

namespace p2p::testing {

// What programs do with the CUDA driver beside the engine. It is looked for at run time, so that this builds
// without CUDA.

/// GPUs that the driver shows to this process; 0 without a driver. Makes no context.
int gpu_count();

/// The ordinals of GPUs on which this process has a primary context. Makes none.
std::vector<int> gpus_with_context();

/// Bytes that are free on a GPU, whoever uses it. Makes a context there.
Result<std::uint64_t> free_gpu_memory(int device);

using GpuHandle = std::array<std::byte, 64>;

/// Opens the allocation of another process from `device` and closes it again, without the engine.
Status open_shared(const GpuHandle& handle, int device);

/// Owns memory of "host", "managed" (by GPU 0), or of GPU N: "cuda:N", "pooled:N" from the driver's pool,
/// "open_pool:N" from one that was made with a handle type, and of memories that are mapped side by side:
/// "mapped:N" a few that other processes can be given, "chunks:N" one for every 2 MiB, "segments:N" one for
/// every 20 MiB, "private:N" a few that nobody can be given, "gapped:N" with one missing among them. Movable.
class GpuMemory {
 public:
  static Result<GpuMemory> allocate(const std::string& place, std::size_t size);

  GpuMemory() = default;
  GpuMemory(GpuMemory&& other) noexcept
      : kind_(other.kind_),
        device_(other.device_),
        address_(std::exchange(other.address_, 0)),
        chunks_(std::move(other.chunks_)),
        exportable_(other.exportable_),
        host_(std::move(other.host_)) {}
  GpuMemory& operator=(GpuMemory&& other) noexcept {
    std::swap(kind_, other.kind_);
    std::swap(device_, other.device_);
    std::swap(address_, other.address_);
    std::swap(chunks_, other.chunks_);
    std::swap(exportable_, other.exportable_);
    std::swap(host_, other.host_);
    return *this;
  }
  ~GpuMemory();

  std::byte* data() const;

  /// The bytes are there when the call returns.
  Status store(std::size_t offset, std::span<const std::byte> bytes) const;
  Status load(std::size_t offset, std::span<std::byte> bytes) const;
  Status set(std::size_t offset, std::size_t size, std::byte value) const;

  /// Of mapped memory: takes the chunk that holds byte `offset` away, or puts other memory in its place.
  Status unmap(std::size_t offset);
  Status remap(std::size_t offset);

  /// What another process needs to open it.
  Result<GpuHandle> share() const;

 private:
  enum class Kind { kHost, kDevice, kPooled, kMapped, kManaged };
  struct Chunk {
    std::uint64_t size = 0;
    std::uint64_t memory = 0;  // 0: a gap
  };

  Status map(const std::string& name, std::size_t size);
  Status map_chunk(std::size_t i);
  bool on_host() const { return kind_ == Kind::kHost || kind_ == Kind::kManaged; }

  Kind kind_ = Kind::kHost;
  int device_ = 0;
  std::uint64_t address_ = 0;  // of memory that is CUDA's
  std::vector<Chunk> chunks_;  // of what was mapped
  bool exportable_ = false;
  std::vector<std::byte> host_;
};

}  // namespace p2p::testing
