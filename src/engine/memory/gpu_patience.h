// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace p2p::engine {

/// Between looks at a GPU, which tells nobody that it is through.
inline constexpr std::chrono::microseconds kLookAtGpuEvery{20};

/// For a GPU that neither ends nor fails.
inline constexpr std::chrono::seconds kGpuLimit{30};

}  // namespace p2p::engine
