// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "softnet/pool.h"
#include "softnet/socket.h"

namespace softnet {

/// What a peer sends back for each message of lent bytes that it has read.
inline constexpr std::byte kRead{1};

/// How many such have come; kLost as receive_some.
long hear_reads(int fd);

/// Keeps the pages of a comm that was closed while its peer had still to read `messages` of them: until it
/// has, or has closed its end as well. It is told at once that nothing more comes.
void keep_unread(UniqueFd socket, std::vector<Pool::Extent> extents, std::size_t messages);

/// Gives back what nobody reads any more.
void sweep_unread();

}  // namespace softnet
