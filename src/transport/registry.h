// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "transport/option_variable.h"
#include "transport/transport.h"

namespace p2p {

namespace device {
class Service;
}

/// Names to factories, best transport first. A plain value: there is no global one.
struct TransportRegistry {
  struct Entry {
    std::string name;
    std::function<std::unique_ptr<Transport>(const Options&, const std::shared_ptr<device::Service>&)> make;
    std::string alias{};  ///< what users of other engines call it; empty: nothing else
    std::span<const OptionVariable> variables{};  ///< for its own options
  };

  /// Adapters for which other engines have a transport and this list none.
  struct Absent {
    std::string word;
    std::string adapters;
  };

  std::vector<Entry> entries;
  std::vector<Absent> absent{};

  /// The transport that a word means: its own name or its alias. kUnavailable, with what to set instead, for
  /// adapters that have no transport here. Words that mean nothing come back as they are.
  Result<std::string> name_of(std::string_view word) const;
};

/// All that come with the library, in the default order of preference.
TransportRegistry builtin_transports();

}  // namespace p2p
