// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpu_memory.h"

namespace p2p::testing {

/// A CUDA graph that the program captures on this thread, in global mode: while it does, CUDA refuses unsafe
/// calls of every thread and gives the capture up.
class GpuCapture {
 public:
  /// Begins it; a little is captured.
  Status begin(int device);

  /// Ends it: whether the graph is there.
  Status end();

 private:
  GpuMemory memory_;
  void* stream_ = nullptr;
};

}  // namespace p2p::testing
