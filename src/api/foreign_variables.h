// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "transport/option_variable.h"

namespace p2p {

/// Variables of NCCL and of other engines with the same Python interface, for users who have set them. Read
/// these first: of several variables for one option the last one read wins, and the engine's own must win.
std::span<const OptionVariable> foreign_variables();

}  // namespace p2p
