// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <vector>

#include "p2p/result.h"
#include "transport/batch.h"

namespace p2p::cma {

/// Copies between this process's memory and another's, with as few system calls as the system allows. Keeps
/// its lists between calls; one thread at a time.
class ProcessCopier {
 public:
  /// Moves the batch's pieces to or from process `pid`, whose memory must be known to be the one meant.
  /// kPeerGone if there is no such process; kSystem or kPermissionDenied, naming the first address that was
  /// not reached, if a part could not be copied. `staged`: here they lie back to back from there on, in place
  /// of where the batch says.
  Status copy(pid_t pid, const Batch& batch, std::byte* staged = nullptr);

 private:
  Status flush(pid_t pid, Operation operation);

  std::vector<iovec> local_;
  std::vector<iovec> remote_;
};

}  // namespace p2p::cma
