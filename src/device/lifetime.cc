// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "device/lifetime.h"

#include "base/error.h"
#include "base/underlying.h"

namespace p2p::device {

Lifetime::Lifetime(const std::byte* data, std::uint64_t size, MemoryPlace place) : data_(data), size_(size) {
  if (place.kind != MemoryKind::kCuda || size == 0) return;
  first_ = cuda::allocation_of(data).value_or(cuda::Allocation{});
  if (first_.mapped) last_ = cuda::allocation_of(data + size - 1).value_or(cuda::Allocation{});
}

bool Lifetime::is_there() const {
  return cuda::is_there(first_, data_) && (last_.base == nullptr || cuda::is_there(last_, data_ + size_ - 1));
}

Status Lifetime::check(RegionId region) const {
  if (first_.base == nullptr || is_there()) return {};
  return fail(ErrorCode::kNotFound, "use region {}: its device memory at {} was freed", to_underlying(region),
              fmt::ptr(data_));
}

}  // namespace p2p::device
