// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdlib>
#include <span>

#include "p2p/memory.h"

/// What was parsed must come back the same from what it serializes to.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto parsed = p2p::RegionDescriptor::parse(std::as_bytes(std::span(data, size)));
  if (!parsed) return 0;
  if (parsed->address + parsed->size < parsed->address) std::abort();
  const auto again = p2p::RegionDescriptor::parse(parsed->serialize());
  if (!again || again->serialize() != parsed->serialize()) std::abort();
  return 0;
}
