// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>

#include "drivers/nccl_net/net.h"
#include "p2p/result.h"

namespace p2p::nccl_net {

/// Whether this process may use CUDA already: its children cannot then, so that a plugin may end there and
/// work here.
enum class CudaInUse : bool { kNo, kYes };

/// How a child process ended. One that was not through in time was killed.
struct ChildEnd {
  bool in_time = false;
  bool crashed = false;
  int code = 0;  ///< that it exited with, or the signal that it crashed by; 0 where no status is left
};

/// Runs `body` in a child process and waits. Nothing of this process' own end runs there, also where `body`
/// calls exit: buffers would be written twice, and threads waited for that a child does not have. A program
/// that ignores SIGCHLD, or waits for all children, leaves no status: then a child that neither returns nor
/// calls exit counts as crashed.
Result<ChildEnd> run_in_child(std::chrono::milliseconds within, const std::function<void()>& body);

/// Calls `init` in a child process and says how that ended: kUnavailable if it ended the process, as
/// GPUDirect-TCPX does where CUDA cannot be initialised, or was not through after a while. Where CUDA is in
/// use only a child that crashed counts. A code that it returned is success here: the caller will get the
/// same. Nothing of it stays in this process.
Status try_init(Net& net, CudaInUse cuda);

}  // namespace p2p::nccl_net
