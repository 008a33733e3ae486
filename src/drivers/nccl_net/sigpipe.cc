// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/nccl_net/sigpipe.h"

#include <ctime>

namespace p2p::nccl_net {
namespace {

thread_local unsigned guards = 0;

sigset_t only_sigpipe() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  return set;
}

}  // namespace

NoSigpipe::NoSigpipe() : outermost_(guards++ == 0) {
  if (!outermost_) return;
  sigset_t pending;
  sigemptyset(&pending);
  ::sigpending(&pending);
  ours_ = sigismember(&pending, SIGPIPE) == 0;
  const sigset_t pipe = only_sigpipe();
  ::pthread_sigmask(SIG_BLOCK, &pipe, &before_);
}

NoSigpipe::~NoSigpipe() {
  --guards;
  if (!outermost_) return;
  if (ours_) {
    // It is this thread's own, so that taking it away waits for nothing and hides nobody else's.
    const sigset_t pipe = only_sigpipe();
    const timespec now{};
    ::sigtimedwait(&pipe, nullptr, &now);
  }
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace p2p::nccl_net
