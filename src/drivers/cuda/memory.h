// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <utility>

#include "p2p/result.h"

namespace p2p::cuda {

/// Owns pinned host memory that every device of this process reaches at the same address.
class HostBuffer {
 public:
  /// From 2 MiB on its pages are huge ones where the system gives them, which pins several times faster.
  /// These come from `numa_node` as far as it has memory and the system allows to ask for it.
  static Result<HostBuffer> allocate(std::size_t bytes, std::optional<int> numa_node = std::nullopt);

  HostBuffer() = default;
  HostBuffer(HostBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        mapped_(std::exchange(other.mapped_, 0)) {}
  HostBuffer& operator=(HostBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(mapped_, other.mapped_);
    return *this;
  }
  ~HostBuffer();

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }  ///< bytes

 private:
  HostBuffer(std::byte* data, std::size_t size, std::size_t mapped)
      : data_(data), size_(size), mapped_(mapped) {}
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t mapped_ = 0;  // bytes of our own pages that CUDA has pinned; 0: CUDA's
};

/// Keeps someone else's host memory pinned and mapped for all devices while it lives.
class HostPin {
 public:
  /// Memory that is pinned already is left to its owner.
  static Result<HostPin> pin(std::byte* data, std::size_t bytes);

  HostPin() = default;
  HostPin(HostPin&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  HostPin& operator=(HostPin&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }
  ~HostPin();

 private:
  explicit HostPin(std::byte* data) : data_(data) {}
  std::byte* data_ = nullptr;
};

/// Owns memory of one device.
class DeviceBuffer {
 public:
  /// Zeroed where `zero`; the call returns when that is done.
  static Result<DeviceBuffer> allocate(int device, std::size_t bytes, bool zero = false);

  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        device_(std::exchange(other.device_, -1)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(device_, other.device_);
    return *this;
  }
  ~DeviceBuffer();

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }  ///< bytes
  int device() const { return device_; }

 private:
  DeviceBuffer(std::byte* data, std::size_t size, int device) : data_(data), size_(size), device_(device) {}
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  int device_ = -1;
};

/// Whether a few bytes of a device and of pinned memory can be had.
inline Status try_small_allocations(int device) {
  constexpr std::size_t kDeviceBytes = 24;
  constexpr std::size_t kPinnedBytes = std::size_t{64} << 10;
  if (const auto tried = DeviceBuffer::allocate(device, kDeviceBytes); !tried) {
    return tl::unexpected(tried.error());
  }
  const auto tried = HostBuffer::allocate(kPinnedBytes);
  return tried ? Status{} : tl::unexpected(tried.error());
}

/// Copies between any two places and waits for the end. For set-up and tests, not for the data path.
Status copy_now(void* target, const void* source, std::size_t bytes);

}  // namespace p2p::cuda
