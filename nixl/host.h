// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include "p2p/result.h"

namespace p2p::nixl {

/// Whether the library that `caller` (an address within it) belongs to is a NIXL whose binary interface is
/// the one of abi/: 1.0 or later. NIXL's version number for plugins cannot tell: it has been 1 since the
/// first release, whatever changed. kUnavailable with the reason otherwise.
Status check_host(void* caller);

}  // namespace p2p::nixl
