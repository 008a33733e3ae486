// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>

#include "transport/option_variable.h"
#include "transport/transport.h"

namespace p2p::rdma {

/// InfiniBand and RoCE: native writes and reads over the NICs of this machine.
std::unique_ptr<Transport> make(const Options& options);

/// What sets its part of the options.
std::span<const OptionVariable> variables();

}  // namespace p2p::rdma
