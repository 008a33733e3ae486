// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "p2p/result.h"

namespace p2p::cuda {

/// "<what>: <name and text of the CUDA runtime's code>": kUnavailable where the machine cannot do it, else
/// kSystem.
Error error_of(int code, std::string_view what);

/// Success for code 0.
Status check(int code, std::string_view what);

}  // namespace p2p::cuda
