// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "p2p/options.h"
#include "p2p/result.h"

namespace p2p::engine {

/// The numeric address by which peers reach this host, if the application announces none: of the family that
/// is listened at.
Result<std::string> own_address(const Options& options);

/// See p2p::Endpoint::announced_address.
Result<std::string> announced_address(const Options& options);

/// The one or two addresses to listen at. `own` is own_address(). If the options name no address and there is
/// a key, these are all addresses of the host. Otherwise `own`, and loopback for peers of this host.
std::vector<std::string> listen_addresses(const Options& options, const std::string& own, bool has_key);

/// Further addresses for a peer that has connected to `address`: one of each other network of this host.
/// Empty unless the port is open at all addresses and the application has named none to announce.
std::vector<std::string> other_addresses(const Options& options, const std::string& address, bool has_key);

}  // namespace p2p::engine
