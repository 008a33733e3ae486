// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "p2p/weights/manifest.h"

namespace p2p::weights {

/// One tensor of bytes that fills the memory.
inline Manifest byte_tensor(std::vector<std::byte>& memory) {
  Manifest manifest;
  const std::vector<std::uint64_t> shape{memory.size()}, offset{0};
  const auto tensor = manifest.add_tensor("w", {"uint8", 1}, shape);
  EXPECT_TRUE(
      manifest.add_shard(*tensor, {0, reinterpret_cast<std::uint64_t>(memory.data()), offset, shape, {}}));
  return manifest;
}

}  // namespace p2p::weights
