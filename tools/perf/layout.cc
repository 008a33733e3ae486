// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "pattern.h"

namespace p2p::perf {
namespace {

constexpr std::uint64_t kGuardBytes = 4096;

/// Enough slots that transfers in flight do not share memory, as long as that costs no more than this.
constexpr std::uint64_t kSlotBytes = std::uint64_t{256} << 20;

std::uint64_t slots_for(const Row& row) {
  return std::clamp<std::uint64_t>(kSlotBytes / row.transfer_bytes(), 1, row.depth);
}

}  // namespace

Layout::Layout(const Row& row, Side side)
    : size_(row.size),
      slots_(slots_for(row)),
      place_count_(row.blocks == 1 ? 1 : row.blocks + row.blocks / 8 + 1),
      places_(place_count_) {
  stride_ = (place_count_ * size_ + kGuardBytes + kGuardBytes - 1) / kGuardBytes * kGuardBytes;
  std::iota(places_.begin(), places_.end(), std::uint64_t{0});
  std::uint64_t random = mix(row.seed + (side == Side::kClient ? 1 : 2));
  for (std::uint64_t i = place_count_; i > 1; --i) {
    random = mix(random);
    std::swap(places_[i - 1], places_[random % i]);
  }
  places_.resize(row.blocks);
}

void Layout::fill(std::span<std::byte> memory, std::uint64_t seed) const {
  std::memset(memory.data(), 0, memory.size());
  std::uint64_t position = 0;
  for (std::uint64_t slot = 0; slot < slots_; ++slot) {
    for (std::uint64_t block = 0; block < places_.size(); ++block, position += size_) {
      fill_pattern(memory.subspan(offset(slot, block), size_), seed, position);
    }
  }
}

std::optional<std::string> Layout::find_fault(std::span<const std::byte> memory, std::uint64_t seed,
                                              std::uint64_t used_slots) const {
  if (auto fault = find_fault_in_blocks(memory, seed, used_slots)) return fault;
  return find_fault_outside(memory, used_slots);
}

std::optional<std::string> Layout::find_fault_in_blocks(std::span<const std::byte> memory, std::uint64_t seed,
                                                        std::uint64_t used_slots) const {
  std::uint64_t position = 0;
  for (std::uint64_t slot = 0; slot < std::min(slots_, used_slots); ++slot) {
    for (std::uint64_t block = 0; block < places_.size(); ++block, position += size_) {
      const auto bytes = memory.subspan(offset(slot, block), size_);
      if (const auto at = find_difference(bytes, seed, position)) {
        return fmt::format("byte {} of block {} of slot {} is wrong{}", *at, block, slot,
                           find_nonzero(bytes) ? "" : " (nothing of the block has come)");
      }
    }
  }
  return std::nullopt;
}

std::optional<std::string> Layout::find_fault_outside(std::span<const std::byte> memory,
                                                      std::uint64_t used_slots) const {
  std::vector<std::uint64_t> taken = places_;
  std::sort(taken.begin(), taken.end());
  taken.push_back(place_count_);
  for (std::uint64_t slot = 0; slot < slots_; ++slot) {
    const std::uint64_t start = slot * stride_;
    std::uint64_t clear = 0;  // of the slot, up to which all has been looked at
    for (const std::uint64_t place : taken) {
      const bool block = place != place_count_ && slot < used_slots;
      const std::uint64_t end = block ? place * size_ : place == place_count_ ? stride_ : clear;
      if (const auto at = find_nonzero(memory.subspan(start + clear, end - clear))) {
        return fmt::format("byte {} of slot {} was touched and belongs to no block", clear + *at, slot);
      }
      clear = block ? end + size_ : end;
    }
  }
  return std::nullopt;
}

}  // namespace p2p::perf
