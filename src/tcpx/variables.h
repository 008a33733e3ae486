// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tcpx/environment.h"

/// The variables of GPUDirect-TCPX, FasTrak and NCCL that matter where the plugin is used directly. They are
/// the plugin's, not ours: they are only read, as the user left them, and only to tell.
namespace tcpx {

/// Empty if it is unset.
std::string variable(const char* name);

/// Those of GPUDirect-TCPX.
std::vector<Finding> check_variables();

/// Those of FasTrak, and whether one of them is set.
std::vector<Finding> check_tcpxo_variables();
bool any_tcpxo_variable();

}  // namespace tcpx
