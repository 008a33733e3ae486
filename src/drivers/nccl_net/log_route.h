// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include "drivers/nccl_net/abi/types.h"

namespace p2p::nccl_net {

/// The logger that plugins get: their lines go to our log. Of each format string a few a second pass and the
/// rest are counted, since some plugins warn at every attempt of a system call.
void route_log(int level, unsigned long subsystems, const char* where, int line, const char* format, ...)
    __attribute__((format(printf, 5, 6)));

}  // namespace p2p::nccl_net
