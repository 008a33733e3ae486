// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

// What the kernels and their launches agree on; only for this folder. Read by the device's compiler as well.
#include "kernels/block.h"
#include "kernels/digest.h"

namespace p2p::kernels {

inline constexpr unsigned kThreads = 512;

/// The list of a launch that carries it.
struct InlineBlocks {
  CopyBlock blocks[kInlineBlocks];
};

inline constexpr unsigned kDigestThreads = 128;

struct InlineRuns {
  DigestRun runs[kInlineRuns];
};

enum class Kernel { kCopyListed, kCopyInline, kStandBy, kDigest, kCopyRows };

/// What the CUDA runtime launches as this kernel. Returns the runtime's code.
int find_kernel(Kernel which, const void*& found);

}  // namespace p2p::kernels
