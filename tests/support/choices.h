// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace p2p::testing {

/// Choices read from bytes, one each; 0 for ever at their end.
class Choices {
 public:
  explicit Choices(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  bool left() const { return at_ < bytes_.size(); }
  unsigned choose(unsigned among) { return left() ? bytes_[at_++] % among : 0; }

 private:
  const std::span<const std::uint8_t> bytes_;
  std::size_t at_ = 0;
};

}  // namespace p2p::testing
