// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <set>
#include <utility>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "drivers/cuda/window.h"

namespace p2p::cuda_ipc {

/// Keeps the ways between this process's GPUs and others open. The first memory of another GPU that a process
/// maps takes 2 ms, in which calls of the driver wait, and so does the next one after it has unmapped all.
/// While something there stays mapped, memory of peers takes 0.1 ms. While a descriptor of memory stays open,
/// the next export takes 0.03 to 0.2 ms, and else 0.9. Thread-safe.
class OpenLinks {
 public:
  /// From `device` to all GPUs whose memory it reaches: 2 MiB of each are mapped, and no context is made
  /// there. The first call for a device takes milliseconds.
  void open(int device);

 private:
  Status open(int device, int peer) P2P_REQUIRES(mutex_);

  struct Kept {
    UniqueFd exported;
    cuda::Window window;
  };
  static Result<Kept> map_new(int peer);

  Mutex mutex_;
  std::map<int, Kept> kept_ P2P_GUARDED_BY(mutex_);  // by the GPU whose memory it is
  std::set<std::pair<int, int>> open_ P2P_GUARDED_BY(mutex_);
};

}  // namespace p2p::cuda_ipc
