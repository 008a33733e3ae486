// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

namespace p2p {

/// The number of an id or enumerator. std::to_underlying comes with C++23 only.
template <class Enum>
constexpr std::underlying_type_t<Enum> to_underlying(Enum value) {
  return static_cast<std::underlying_type_t<Enum>>(value);
}

}  // namespace p2p
