// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace p2p::testing {

/// One TCP connection of a process, as `ss` names its ends.
struct Flow {
  int fd = -1;
  std::string local;
  std::string remote;
};

/// Those that are up, in the order of their descriptors: that of a session is older than those of its
/// channels.
std::vector<Flow> flows_of(pid_t process);

/// Both ends see it reset. False if it was gone, or the kernel does not do that: it takes root and
/// CONFIG_INET_DIAG_DESTROY.
bool cut(const Flow& flow);

}  // namespace p2p::testing
