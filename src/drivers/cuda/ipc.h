// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <string_view>
#include <utility>

#include "drivers/cuda/place.h"
#include "p2p/result.h"

namespace p2p::cuda {

/// Names one device allocation to the other processes of this host.
using IpcHandle = std::array<std::byte, 64>;

/// "... it <comes from somewhere>": why other processes cannot map it, empty if they can.
std::string_view why_private(const Allocation& allocation);

/// The handle of the allocation around `pointer`.
Result<IpcHandle> ipc_handle_of(const void* pointer);

/// Owns another process's allocation as mapped into this one. It keeps the memory alive even after its owner
/// freed it.
class IpcMapping {
 public:
  /// Maps for kernels and copies of `device`, whichever device the memory is on. Takes about a millisecond.
  /// Fails for handles of this very process.
  static Result<IpcMapping> open(const IpcHandle& handle, int device);

  IpcMapping() = default;
  IpcMapping(IpcMapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), device_(std::exchange(other.device_, -1)) {}
  IpcMapping& operator=(IpcMapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(device_, other.device_);
    return *this;
  }
  ~IpcMapping();

  std::byte* data() const { return data_; }  ///< where the allocation begins

 private:
  IpcMapping(std::byte* data, int device) : data_(data), device_(device) {}
  std::byte* data_ = nullptr;
  int device_ = -1;
};

}  // namespace p2p::cuda
