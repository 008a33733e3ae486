// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "drivers/verbs/device.h"
#include "p2p/result.h"

struct ibv_mr;

namespace p2p::verbs {

/// A part of a buffer that another driver exported for devices.
struct DmaBuffer {
  int fd = -1;               ///< not owned; may be closed once registered
  std::uint64_t offset = 0;  ///< bytes
};

/// What peers that have the remote key may do.
enum class Remote { kReads, kReadsAndWrites };

/// Owns the registration of a range with one device: it and, with the remote key, peers may use the range
/// until this goes.
class MemoryRegion {
 public:
  static Result<MemoryRegion> add(std::shared_ptr<Device> device, std::byte* data, std::size_t size,
                                  Remote remote = Remote::kReadsAndWrites);

  /// `data` is the range's address on its own device, by which peers name it.
  static Result<MemoryRegion> add(std::shared_ptr<Device> device, const DmaBuffer& buffer, std::byte* data,
                                  std::size_t size, Remote remote = Remote::kReadsAndWrites);

  MemoryRegion() = default;
  MemoryRegion(MemoryRegion&& other) noexcept
      : device_(std::move(other.device_)), region_(std::exchange(other.region_, nullptr)) {}
  MemoryRegion& operator=(MemoryRegion&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(region_, other.region_);
    return *this;
  }
  ~MemoryRegion();

  std::uint32_t local_key() const;
  std::uint32_t remote_key() const;

 private:
  MemoryRegion(std::shared_ptr<Device> device, ibv_mr* region)
      : device_(std::move(device)), region_(region) {}

  std::shared_ptr<Device> device_;
  ibv_mr* region_ = nullptr;
};

}  // namespace p2p::verbs
