// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "transport/transport.h"

namespace p2p {

/// Names to factories, best transport first. A plain value: there is no global one.
struct TransportRegistry {
  struct Entry {
    std::string name;
    std::function<std::unique_ptr<Transport>(const Options&)> make;
  };
  std::vector<Entry> entries;
};

/// All that come with the library, in the default order of preference.
TransportRegistry builtin_transports();

}  // namespace p2p
