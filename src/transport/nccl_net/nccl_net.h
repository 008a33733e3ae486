// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>

#include "transport/registry.h"

namespace p2p::nccl_net {

/// Any NCCL net plugin: GPUDirect-TCPX and others.
std::unique_ptr<Transport> make(const Options& options, const std::shared_ptr<device::Service>& devices);

/// What sets its part of the options.
std::span<const OptionVariable> variables();

}  // namespace p2p::nccl_net
