// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "softnet/fragments.h"

#include <algorithm>
#include <numeric>

namespace softnet {
namespace {
constexpr std::size_t kPage = 4096;

std::uint64_t between(std::mt19937_64& random, std::uint64_t low, std::uint64_t high) {
  return std::uniform_int_distribution<std::uint64_t>(low, high)(random);
}

std::size_t random_length(std::mt19937_64& random) {
  switch (random() % 4) {
    case 0: return between(random, 1, 64);
    case 1: return between(random, 4096, 9000);
    case 2: return 4096;
    default: return between(random, 1, 4096);
  }
}

}  // namespace

FragmentPlan plan_pages(std::size_t size) {
  FragmentPlan plan;
  plan.extent_bytes = size;
  for (std::size_t at = 0; at < size; at += kPage) {
    plan.entries.push_back(
        {static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(std::min(kPage, size - at)), at});
  }
  return plan;
}

FragmentPlan plan_packets(std::size_t size, std::size_t payload) {
  FragmentPlan plan;
  for (std::size_t at = 0; at < size;) {
    const std::size_t packet = std::min(size - at, payload);
    for (std::size_t end = at + packet; at < end;) {
      const std::size_t length = std::min(end - at, kPage);
      plan.entries.push_back(
          {static_cast<std::uint32_t>(plan.extent_bytes), static_cast<std::uint32_t>(length), at});
      plan.extent_bytes += kPage;
      at += length;
    }
  }
  return plan;
}

FragmentPlan plan_random(std::size_t size, std::mt19937_64& random) {
  FragmentPlan plan;
  for (std::size_t at = 0; at < size;) {
    const std::size_t left = size - at;
    // What is left must fit into the entries that are left.
    const std::size_t least =
        (left + abi::kUnpackEntries - 1 - plan.entries.size()) / (abi::kUnpackEntries - plan.entries.size());
    const std::size_t length = std::min(left, std::max(least, random_length(random)));
    plan.entries.push_back({0, static_cast<std::uint32_t>(length), at});
    at += length;
  }
  std::vector<std::size_t> order(plan.entries.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::shuffle(order, random);
  for (const std::size_t index : order) {
    plan.extent_bytes += between(random, 0, 31);
    plan.entries[index].source = static_cast<std::uint32_t>(plan.extent_bytes);
    plan.extent_bytes += plan.entries[index].size;
  }
  return plan;
}

}  // namespace softnet
