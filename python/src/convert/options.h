// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <optional>

#include "p2p/options.h"

namespace p2p::python {

/// The environment's options with keyword arguments on top; TypeError for an unknown one. `cpus` bounds the
/// engine threads where neither says how many.
Options options_from(const nanobind::kwargs& keywords, std::optional<unsigned> cpus);

}  // namespace p2p::python
