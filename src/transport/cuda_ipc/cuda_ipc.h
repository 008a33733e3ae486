// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "transport/registry.h"

namespace p2p::cuda_ipc {

/// Device memory of other processes of this host, reached directly; also between endpoints of one process.
std::unique_ptr<Transport> make(const Options& options, const std::shared_ptr<device::Service>& devices);

}  // namespace p2p::cuda_ipc
