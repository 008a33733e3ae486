// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include "abi/types.h"
#include "p2p/options.h"

namespace p2p::nixl {

/// The parameters that create_backend takes: every variable of docs/options.md without UCCL_P2P_ and in lower
/// case, with empty values, which mean "as the environment says".
nixl_b_params_t known_parameters();

/// The environment's options with these parameters on top. An unknown parameter is kInvalidArgument.
Result<Options> read_options(const nixl_b_params_t& given);

}  // namespace p2p::nixl
