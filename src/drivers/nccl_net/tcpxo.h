// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "p2p/result.h"

/// What is known besides its ABI of FasTrak, the plugin of GPUDirect-TCPXO. Its devices are of type HOST and
/// put bytes right into CUDA memory; they carry no other. Each call belongs to the CUDA device that is
/// current.
namespace p2p::nccl_net {

bool is_tcpxo(std::string_view plugin_name);

/// That, or GPUDirect-TCPX (tcpx.h).
bool is_gpudirect(std::string_view plugin_name);

/// Where FasTrak looks for the receive-datapath manager: a file, or with "@" in front an abstract name.
std::string tcpxo_manager_address();

/// FasTrak's `init` ends the process where that manager (RxDM) does not take connections. kUnavailable says
/// where it was looked for.
Status check_tcpxo_manager();

}  // namespace p2p::nccl_net
