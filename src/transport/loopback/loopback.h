// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "transport/registry.h"

namespace p2p::loopback {

/// Endpoints of one process: a copy. channel.cc is the shortest complete channel; read it first.
std::unique_ptr<Transport> make(const Options& options, const std::shared_ptr<device::Service>& devices);

}  // namespace p2p::loopback
