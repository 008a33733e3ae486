// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "p2p/api.h"
#include "p2p/options.h"

namespace p2p {

/// Sets what one UCCL_P2P_ variable of `option_rows` would set. Empty text changes nothing; an unknown
/// variable is kNotFound, an unreadable value kInvalidArgument.
P2P_API Status set_option(Options& options, std::string_view variable, std::string_view text);

/// Sets it to its default, whatever the environment says. kNotFound as above.
P2P_API Status reset_option(Options& options, std::string_view variable);

}  // namespace p2p
