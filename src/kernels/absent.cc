// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// The launches where the CUDA toolkit was missing at build time.
#include "kernels/copy.h"
#include "kernels/digest.h"
#include "kernels/standby.h"

namespace p2p::kernels {

// The code of the runtime for "stub library"; drivers/cuda names it as "built without CUDA".
int launch_copy(const CopyList& /*list*/, const Grid& /*grid*/, const Signal& /*signal*/, void* /*stream*/) {
  return 34;
}
int launch_copy(const CopyRows& /*rows*/, const Grid& /*grid*/, const Signal& /*signal*/, void* /*stream*/) {
  return 34;
}
int launch_standby(const StandbyBoard& /*board*/, unsigned /*ctas*/, void* /*stream*/) { return 34; }
int launch_digest(const DigestList& /*list*/, std::uint64_t* /*blocks*/, const Signal& /*signal*/,
                  void* /*stream*/) {
  return 34;
}

}  // namespace p2p::kernels
