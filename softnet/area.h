// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "drivers/cuda/memory.h"
#include "drivers/nccl_net/abi/unpack.h"

namespace softnet {

namespace abi = p2p::nccl_net::abi;

/// The lists of one receive comm, and the structure by which hosts find them and the pool. One that is given
/// back waits for the next comm: freeing pinned or device memory would wait for kernels that wait for us.
class UnpackArea {
 public:
  struct Return {
    void operator()(UnpackArea* area) const;
  };
  using Owner = std::unique_ptr<UnpackArea, Return>;

  /// For the device that is current. Null, with a warning, if there is no memory. `pool` is what hosts are
  /// told.
  static Owner take(std::byte* pool);

  abi::UnpackLists& lists() const { return *lists_; }

  /// In device memory where there is a device.
  void* handle() { return device_.data() != nullptr ? static_cast<void*>(device_.data()) : &plain_; }

 private:
  static std::unique_ptr<UnpackArea> make(int device);
  bool reset(std::byte* pool);

  abi::UnpackDevice plain_{};
  p2p::cuda::HostBuffer pinned_;
  p2p::cuda::DeviceBuffer device_;
  std::unique_ptr<abi::UnpackLists> pageable_;
  abi::UnpackLists* lists_ = nullptr;
};

}  // namespace softnet
