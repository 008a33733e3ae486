// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "transport/option_variable.h"

namespace p2p {

/// The variables `UCCL_P2P_*` that do not belong to one transport.
std::span<const OptionVariable> engine_variables();

}  // namespace p2p
