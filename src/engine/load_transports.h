// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/memory/region.h"
#include "p2p/options.h"
#include "p2p/result.h"
#include "transport/registry.h"

namespace p2p::engine {

/// The transports that the options allow, in their order, each with what its probe says. It is an error if
/// none can be used, or none is the one that `options.required` names, which becomes the transport's own
/// name.
Result<TransportList> load_transports(Options& options, const TransportRegistry& registry);

}  // namespace p2p::engine
