// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <cstdlib>

#include "support/sequence.h"

namespace {

using p2p::engine::Endpoint;

// One for all inputs: what one run leaves behind the next ones meet.
Endpoint& endpoint() {
  static const auto made = [] {
    p2p::Options options;
    options.listen_address = "127.0.0.1";
    p2p::TransportRegistry registry{{p2p::testing::PlainTransport::entry("plain")}};
    for (const auto& entry : p2p::builtin_transports().entries) {
      if (entry.name == "tcp") registry.entries.push_back(entry);
    }
    return Endpoint::create(options, registry).value();
  }();
  return *made;
}

}  // namespace

/// Each byte chooses what a raw peer says next, or what the application does: see support/sequence.h.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kMost = 2000;
  if (size > kMost) return 0;
  if (!p2p::testing::Sequence(endpoint(), {data, size}).run()) std::abort();
  return 0;
}
