// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csignal>

namespace p2p::nccl_net {

/// Within its scope this thread gets no SIGPIPE: plugins write to peers that may have gone, and the signal's
/// default is the end of the process. One within another costs nothing.
class NoSigpipe {
 public:
  NoSigpipe();
  ~NoSigpipe();
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  bool outermost_ = false;
  bool ours_ = false;  ///< one that comes now was raised within the scope
  sigset_t before_;
};

}  // namespace p2p::nccl_net
