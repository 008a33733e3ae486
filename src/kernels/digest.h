// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/block.h"

namespace p2p::kernels {

/// One run of the bytes that are hashed: from byte `begin` of them up to where the next run begins, or to the
/// end. `data` is memory of the device. None is empty.
struct DigestRun {
  const std::byte* data = nullptr;
  std::uint64_t begin = 0;
};

inline constexpr std::uint64_t kHashedBlock = 4096;
inline constexpr std::size_t kInlineRuns = 64;  ///< travel with the launch itself

struct DigestList {
  /// Read by the host where there are at most kInlineRuns, else by the device: then they lie in device memory
  /// and stay until the end.
  const DigestRun* runs = nullptr;
  std::uint64_t count = 0;
  std::uint64_t total = 0;  ///< bytes of all, not 0
};

/// Writes XXH3 (64 bits, seed 0) of each block of kHashedBlock bytes, the last of which is filled up with
/// zeros, to `blocks`: pinned host memory. On `stream` (cudaStream_t) of the current device. Returns the CUDA
/// runtime's code, 0 when launched; failures while running are the stream's.
int launch_digest(const DigestList& list, std::uint64_t* blocks, const Signal& signal, void* stream);

}  // namespace p2p::kernels
