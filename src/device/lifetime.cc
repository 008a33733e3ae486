// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "device/lifetime.h"

#include "base/error.h"
#include "base/underlying.h"

namespace p2p::device {

Lifetime::Lifetime(const std::byte* data, std::uint64_t size, MemoryPlace place) : data_(data) {
  if (place.kind != MemoryKind::kCuda || size == 0) return;
  first_ = cuda::allocation_of(data).value_or(cuda::Allocation{});
  if (!first_.mapped) return;
  if (auto chunks = cuda::chunks_of(first_, data, size)) chunks_ = std::move(*chunks);
}

bool Lifetime::ends_are_there() const {
  return cuda::is_there(first_, data_) && (chunks_.size() < 2 || cuda::is_there(chunks_.back()));
}

Status Lifetime::gone(RegionId region, const std::byte* where) const {
  return fail(ErrorCode::kNotFound,
              "use region {}: its device memory at {} was freed or unmapped (register it anew)",
              to_underlying(region), fmt::ptr(where));
}

Status Lifetime::check(RegionId region) const {
  if (first_.base == nullptr) return {};
  if (!ends_are_there()) return gone(region, data_);
  if (chunks_.size() < 3) return {};
  const cuda::Chunk& one = chunks_[next_.fetch_add(1, std::memory_order_relaxed) % chunks_.size()];
  if (!cuda::is_there(one)) return gone(region, one.base);
  return {};
}

Status Lifetime::check_all(RegionId region) const {
  if (first_.base == nullptr) return {};
  if (!ends_are_there()) return gone(region, data_);
  for (const cuda::Chunk& chunk : chunks_) {
    if (!cuda::is_there(chunk)) return gone(region, chunk.base);
  }
  return {};
}

}  // namespace p2p::device
