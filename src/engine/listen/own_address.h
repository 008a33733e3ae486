// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "p2p/options.h"
#include "p2p/result.h"

namespace p2p::engine {

/// The one by which peers reach this host if nothing else is announced.
Result<std::string> own_address(const Options& options);

/// See p2p::Endpoint::announced_address.
Result<std::string> announced_address(const Options& options);

/// One or two to listen at: strangers are let in everywhere only if a key keeps them out, and peers of this
/// host may use its loopback address.
std::vector<std::string> listen_addresses(const Options& options, const std::string& own, bool has_key);

/// Where else a peer that came to `address` finds this host: if the application left it to the engine at
/// which addresses to listen and which one to tell, and so all are open, at one of each other network.
std::vector<std::string> other_addresses(const Options& options, const std::string& address, bool has_key);

}  // namespace p2p::engine
