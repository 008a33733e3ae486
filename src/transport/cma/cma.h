// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "transport/registry.h"

namespace p2p::cma {

/// Processes of one host: process_vm_readv and process_vm_writev ("cross memory attach").
std::unique_ptr<Transport> make(const Options& options, const std::shared_ptr<device::Service>& devices);

}  // namespace p2p::cma
