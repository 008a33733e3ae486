// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "p2p/options.h"

namespace p2p {

/// A variable of the environment: how its text becomes an option, and how the option would be written as
/// text.
struct OptionVariable {
  const char* name;
  const char* meaning;  ///< for docs/options.md
  Status (*read)(std::string_view text, Options& options);
  std::string (*show)(const Options& options);
};

}  // namespace p2p
