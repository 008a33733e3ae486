// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "device/service.h"
#include "engine/memory/region.h"
#include "p2p/options.h"
#include "p2p/result.h"
#include "transport/registry.h"

namespace p2p::engine {

/// The transports that the options allow, in the options' order, each with the reason if its probe says that
/// it cannot be used here. `options.required` may be an alias and is replaced by the transport's own name.
/// kUnavailable if none can be used; kInvalidArgument for a name that no transport has, or if the required
/// one is not among those allowed.
Result<TransportList> load_transports(Options& options, const TransportRegistry& registry,
                                      const std::shared_ptr<device::Service>& devices);

}  // namespace p2p::engine
