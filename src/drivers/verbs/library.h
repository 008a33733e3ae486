// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include "p2p/result.h"

namespace p2p::verbs {

/// The functions of libibverbs. Handles keep a reference: it outlives them.
struct Library;

/// Opens libibverbs where this machine has it; it stays loaded for the life of the process. Any thread.
Result<const Library*> load_library();

}  // namespace p2p::verbs
