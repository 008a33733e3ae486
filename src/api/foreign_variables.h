// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "transport/option_variable.h"

namespace p2p {

/// What users of NCCL and of other engines with this Python interface have set. To be read first: the
/// engine's variables win, and later ones over earlier ones.
std::span<const OptionVariable> foreign_variables();

}  // namespace p2p
