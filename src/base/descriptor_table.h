// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace p2p {

/// The soft limit of this process for descriptors (RLIMIT_NOFILE): all its descriptors are below.
std::size_t descriptor_limit();

/// Makes the kernel's table of this process's descriptors large enough for `count`, within the limit. If the
/// table grows later, in a process of several threads, the thread that opens the descriptor waits 10 to 30 ms
/// (synchronize_rcu; seen with Linux 6.18).
void make_room_for_descriptors(std::size_t count);

}  // namespace p2p
