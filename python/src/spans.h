// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "p2p/memory.h"

namespace p2p::python {

/// A registration's id as Python has it; the engine's 0 names none.
inline RegionId region_id(std::uint64_t mr_id) {
  return mr_id <= 0xffffffffU ? RegionId{static_cast<std::uint32_t>(mr_id)} : RegionId{0};
}

inline LocalSpan local_span(std::uint64_t mr_id, std::uint64_t address, std::size_t size) {
  return {.region = region_id(mr_id), .data = reinterpret_cast<std::byte*>(address), .size = size};
}

/// A vector whose memory its thread keeps for the next one. Lists of thousands of spans come call after call,
/// and to touch fresh pages takes longer than to fill them.
template <class T>
class Recycled {
 public:
  Recycled() { items_.swap(spare()); }
  Recycled(Recycled&& other) noexcept { items_.swap(other.items_); }
  Recycled& operator=(Recycled&& other) noexcept { return items_.swap(other.items_), *this; }
  ~Recycled() {
    constexpr std::size_t kMostBytes = std::size_t{4} << 20;
    if (items_.capacity() <= spare().capacity() || items_.capacity() * sizeof(T) > kMostBytes) return;
    items_.clear();
    items_.swap(spare());
  }

  std::vector<T>& operator*() { return items_; }
  const std::vector<T>& operator*() const { return items_; }
  std::vector<T>* operator->() { return &items_; }

 private:
  static std::vector<T>& spare() {
    thread_local std::vector<T> kept;
    return kept;
  }

  std::vector<T> items_;
};

}  // namespace p2p::python
