// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "drivers/verbs/device.h"
#include "drivers/verbs/memory.h"
#include "p2p/rdma_options.h"
#include "p2p/result.h"

namespace p2p::rdma {

/// A port in use.
struct Nic {
  std::size_t device = 0;  ///< in the fabric's list
  verbs::Port port;        ///< as it was when the fabric was opened; its GIDs are those that may be used
  int numa_node = -1;
};

/// The devices and ports of this machine that the options select. Constant once open, any thread.
class Fabric {
 public:
  /// kUnavailable, with the reason, if there is no port to use or one that was asked for is not there.
  static Result<std::shared_ptr<const Fabric>> open(const verbs::Library& library,
                                                    const RdmaOptions& options);

  const std::vector<std::shared_ptr<verbs::Device>>& devices() const { return devices_; }

  /// All ports that are up now, or of them those nearest to the GPUs that this process uses; nearest first.
  std::vector<const Nic*> nics() const;

  /// Null if there is none of that name ("mlx5_0:1").
  const Nic* find(const std::string& name) const;

  /// Where flushing reads (see RequestQueue) put their byte.
  std::byte* scratch() const { return scratch_.get(); }
  std::uint32_t scratch_key(std::size_t device) const { return scratch_regions_[device].local_key(); }

 private:
  Status add_ports(const verbs::Library& library, const std::string& device, const RdmaOptions& options);

  std::vector<std::shared_ptr<verbs::Device>> devices_;
  std::vector<Nic> nics_;
  std::unique_ptr<std::byte[]> scratch_;
  std::vector<verbs::MemoryRegion> scratch_regions_;  ///< one a device
};

/// How many folders of /sys/devices two devices share: the more, the nearer.
std::size_t shared_folders(const std::string& left, const std::string& right);

/// Where a port is: its folder below /sys/devices, and how far its NUMA node is from here.
struct NicPlace {
  const Nic* nic = nullptr;
  std::string folder;
  int distance = 0;
};

/// Those that share most folders with one of `gpus`, all if there is none; nearest first, else in order.
std::vector<const Nic*> nearest(std::vector<NicPlace> places, const std::vector<std::string>& gpus);

/// Between the NUMA node that this thread runs on and `node`, as the system counts it (10: the same); 0 where
/// it does not say.
int numa_distance(int node);

}  // namespace p2p::rdma
