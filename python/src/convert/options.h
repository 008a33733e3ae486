// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include "p2p/options.h"

namespace p2p::python {

/// The environment's options with keyword arguments on top; TypeError for an unknown one.
Options options_from(const nanobind::kwargs& keywords);

}  // namespace p2p::python
