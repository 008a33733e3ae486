// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
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

/// A list whose memory its thread keeps for the next one, entries and all. Lists of thousands of spans come
/// call after call, and to touch fresh pages, or to clear what is written at once, takes longer than to fill
/// it.
template <class T>
class Recycled {
 public:
  Recycled() { memory_.swap(spare()); }
  Recycled(Recycled&& other) noexcept { *this = std::move(other); }
  Recycled& operator=(Recycled&& other) noexcept {
    memory_.swap(other.memory_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Recycled() {
    constexpr std::size_t kMostBytes = std::size_t{4} << 20;
    if (memory_.size() > spare().size() && memory_.size() * sizeof(T) <= kMostBytes) memory_.swap(spare());
  }

  /// Of any contents, which are the caller's to write.
  std::span<T> resize(std::size_t size) {
    if (memory_.size() < size) memory_ = std::vector<T>(size);
    size_ = size;
    return **this;
  }

  std::span<T> operator*() { return {memory_.data(), size_}; }
  std::span<const T> operator*() const { return {memory_.data(), size_}; }

 private:
  static std::vector<T>& spare() {
    thread_local std::vector<T> kept;
    return kept;
  }

  std::vector<T> memory_;  // as large as it ever was
  std::size_t size_ = 0;
};

}  // namespace p2p::python
