// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include "abi/types.h"
#include "p2p/options.h"
#include "p2p/transfer.h"

namespace p2p::nixl {

/// The parameters that create_backend takes: every variable of docs/options.md without UCCL_P2P_ and in lower
/// case, with empty values, which mean "as the environment says"; and those of `read_posts`.
nixl_b_params_t known_parameters();

/// The environment's options with these parameters on top. An unknown parameter is kInvalidArgument.
Result<Options> read_options(const nixl_b_params_t& given);

/// How the backend posts its transfers: `priority` (high, normal or low), `rate` (bytes a second of each; 0:
/// no bound) and `verify` (1: PostOptions::verify). Others are left to `read_options`.
Result<PostOptions> read_posts(const nixl_b_params_t& given);

}  // namespace p2p::nixl
