// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <netinet/in.h>

#include <array>
#include <cstddef>
#include <string_view>
#include <vector>

#include "drivers/nccl_net/abi/types.h"
#include "p2p/result.h"

namespace p2p::nccl_net {

/// What a listener gives to its connector, by way of the peers. Only the plugin knows what it means.
using Handle = std::array<std::byte, abi::kHandleBytes>;

/// A handle that came from a peer without what it has no business to say: GPUDirect-TCPX takes a pointer of
/// its own from where its listeners leave zeros behind their addresses, and FasTrak a state and a pointer
/// from the end. `own`: of a listener here.
Handle handle_from_peer(Handle handle, const Handle& own, std::string_view plugin_name);

/// Whether it is known what the plugin makes of a handle, so that one of a stranger does no harm: others may
/// take pointers out of them.
bool knows_handles_of(std::string_view plugin_name);

/// Where a listener of this process takes connections, as its own handle says; empty: that is not known of
/// the plugin's handles.
std::vector<sockaddr_in6> own_addresses(const Handle& handle, std::string_view plugin_name);

/// Plugins trust handles: GPUDirect-TCPX divides by the number of threads that one names. Checks every field
/// of those whose layout is known, as far as `own`, of a listener here, passes: versions other than 3.1.9 may
/// lay them out otherwise. kInvalidArgument names the field; kUnavailable: own handles of FasTrak are of
/// another version than the known one.
Status check_handle(const Handle& handle, const Handle& own, std::string_view plugin_name);

}  // namespace p2p::nccl_net
