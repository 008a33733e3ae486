// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <random>

namespace p2p::chaos {

/// All chances of one run, by its seed.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : engine_(seed) {}

  /// From least to most, both included.
  std::uint64_t between(std::uint64_t least, std::uint64_t most) {
    return std::uniform_int_distribution<std::uint64_t>(least, most)(engine_);
  }

  bool one_in(std::uint64_t times) { return between(1, times) == 1; }

  /// As often between 1 and 2 as between 500 and 1000.
  std::uint64_t up_to(std::uint64_t most) {
    unsigned steps = 0;
    while (most >> (steps + 1) != 0) ++steps;
    const std::uint64_t step = std::uint64_t{1} << between(0, steps);
    return between(step, 2 * step - 1 < most ? 2 * step - 1 : most);
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace p2p::chaos
