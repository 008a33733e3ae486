// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "p2p/connection.h"
#include "sequences.h"

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

/// Three lists of one length. kInvalidArgument otherwise.
Result<Recycled<LocalSpan>> local_spans(const Numbers& ids, const Numbers& addresses, const Numbers& sizes,
                                        std::optional<std::size_t> num_iovs);

/// Turns 64-byte blobs into spans of a connection. The blobs of one region differ in address and size only,
/// so the connection is asked once a region, not once a blob.
class Importer {
 public:
  explicit Importer(const Connection& connection) : connection_(connection) {}

  /// The first `size` bytes of what the blob describes; kOutOfRange if it describes fewer.
  Result<RemoteSpan> operator()(std::span<const std::byte> blob, std::size_t size);

 private:
  struct Known {
    std::array<std::byte, RegionDescriptor::kBytes> blob{};
    RemoteRegionId region{};  ///< 0: empty
  };
  static constexpr std::size_t kKnown = 64;

  Result<RemoteRegionId> region_of(std::span<const std::byte> blob);

  const Connection& connection_;
  std::array<Known, kKnown> known_{};
};

/// The blobs, checked to be 64 bytes each, as spans of these sizes.
Result<Recycled<RemoteSpan>> remote_spans(const Connection& connection, const Blobs& blobs,
                                          const Numbers& sizes);

}  // namespace p2p::python
