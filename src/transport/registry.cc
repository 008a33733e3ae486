// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/registry.h"

#include "base/error.h"

namespace p2p {

Result<std::string> TransportRegistry::name_of(std::string_view word) const {
  for (const Entry& entry : entries) {
    if (!entry.alias.empty() && entry.alias == word) return entry.name;
  }
  for (const Absent& none : absent) {
    if (none.word != word) continue;
    return fail(ErrorCode::kUnavailable,
                "use transport '{}': there is none for {} adapters; set UCCL_P2P_TRANSPORT=tcp, which uses "
                "their host's IP network",
                word, none.adapters);
  }
  return std::string(word);
}

}  // namespace p2p
