// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "drivers/cuda/driver.h"

namespace p2p::cuda {

/// A reference to memory of cuMemCreate while it is looked at, exported or mapped; mappings and descriptors
/// keep references of their own. Only for .cc files of this folder.
class RetainedMemory {
 public:
  /// Of what is mapped at `address`; none if that is no such memory.
  RetainedMemory(const Driver& driver, CUdeviceptr address) : driver_(&driver) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver gives addresses as numbers
    held_ = driver.retain_memory(&handle_, reinterpret_cast<void*>(address)) == CUDA_SUCCESS;
  }

  /// Of what a descriptor from another process stands for.
  RetainedMemory(const Driver& driver, int fd) : driver_(&driver) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver takes the descriptor in place of a pointer
    void* const named = reinterpret_cast<void*>(static_cast<std::uintptr_t>(fd));
    code_ = driver.import_memory(&handle_, named, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    held_ = code_ == CUDA_SUCCESS;
  }

  ~RetainedMemory() {
    if (held_) driver_->release_memory(handle_);
  }
  RetainedMemory(const RetainedMemory&) = delete;
  RetainedMemory& operator=(const RetainedMemory&) = delete;

  explicit operator bool() const { return held_; }
  CUmemGenericAllocationHandle handle() const { return handle_; }
  CUresult code() const { return code_; }  ///< of the import

 private:
  const Driver* driver_;
  CUmemGenericAllocationHandle handle_ = 0;
  CUresult code_ = CUDA_SUCCESS;
  bool held_ = false;
};

}  // namespace p2p::cuda
