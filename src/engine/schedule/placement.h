// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>

#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "drivers/topology/topology.h"

namespace p2p::engine {

/// Keeps threads of an endpoint on the CPUs next to the GPUs whose memory it moves. The threads outlive its
/// use. Thread-safe.
class Placement {
 public:
  using Near = std::function<Result<topology::Cpus>(int device)>;
  static Result<topology::Cpus> near_device(int device);

  /// What the calling thread, which has just started `threads`, may use is what they may use.
  explicit Placement(std::vector<pthread_t> threads, Near near = near_device);

  /// Memory of `device` is used from now on. Of several devices all CPUs count; one whose place is unknown
  /// changes nothing.
  void use(int device);

 private:
  const std::vector<pthread_t> threads_;
  const Near near_;
  const topology::Cpus allowed_;  // none: the threads are left alone
  Mutex mutex_;
  std::set<int> devices_ P2P_GUARDED_BY(mutex_);
  topology::Cpus cpus_ P2P_GUARDED_BY(mutex_);
};

}  // namespace p2p::engine
