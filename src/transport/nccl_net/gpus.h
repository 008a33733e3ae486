// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <vector>

#include "base/mutex.h"
#include "p2p/result.h"

namespace p2p::nccl_net {

/// Which CUDA devices an endpoint has memory on, and for which its channels are made. A channel's comms
/// belong to one device, whose pool receives; but any channel may be given any memory, which its kernels then
/// read and write over NVLink or PCIe. So every device that has channels must reach every device that has
/// memory. Thread-safe.
class Gpus {
 public:
  /// Makes the memory of `peer` usable for kernels of `device`, or says why that cannot be.
  using Reach = std::function<Status(int device, int peer)>;

  explicit Gpus(Reach reach) : reach_(std::move(reach)) {}

  /// Memory of the device is to be moved. `private_memory`: no other device can be let in, as with memory
  /// that was mapped with cuMemMap or came from a pool.
  Status add_memory(int device, bool private_memory);

  /// The devices for which a connection's channels are to be made, ascending; `fallback` alone where no
  /// memory was registered yet.
  std::vector<int> for_channels(int fallback);

 private:
  Status check_private(int device) const P2P_REQUIRES(mutex_);
  bool may_have_channels(int device) const P2P_REQUIRES(mutex_) { return !only_ || *only_ == device; }

  const Reach reach_;
  Mutex mutex_;
  std::set<int> devices_ P2P_GUARDED_BY(mutex_);
  std::set<int> with_channels_ P2P_GUARDED_BY(mutex_);
  std::optional<int> only_ P2P_GUARDED_BY(mutex_);  // it has private memory: no other may have channels
};

}  // namespace p2p::nccl_net
