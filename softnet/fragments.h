// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "drivers/nccl_net/abi/unpack.h"

namespace softnet {

namespace abi = p2p::nccl_net::abi;

/// How one message is cut and laid into an extent of the pool. Sources count from the extent's start.
struct FragmentPlan {
  std::vector<abi::UnpackEntry> entries;  ///< ascending, gapless destinations
  std::size_t extent_bytes = 0;
};

/// As a NIC with pages of 4 KiB would.
FragmentPlan plan_pages(std::size_t size);

/// As a NIC would whose packets carry `payload` bytes, cut where a page of 4 KiB is full.
FragmentPlan plan_packets(std::size_t size, std::size_t payload);

/// Sizes from 1 byte to 9000, any alignment, gaps, and places in no order.
FragmentPlan plan_random(std::size_t size, std::mt19937_64& random);

}  // namespace softnet
