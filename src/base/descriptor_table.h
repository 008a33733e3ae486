// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace p2p {

/// The first descriptor that this process cannot have, as its limit is now.
std::size_t descriptor_limit();

/// Makes the kernel's table of this process's descriptors large enough for `count`, as far as the process may
/// have so many. A table that grows under a process of several threads holds up whoever opened the descriptor
/// that did not fit for 10 to 30 ms (synchronize_rcu; seen with Linux 6.18): better now than in the midst of
/// connecting.
void make_room_for_descriptors(std::size_t count);

}  // namespace p2p
