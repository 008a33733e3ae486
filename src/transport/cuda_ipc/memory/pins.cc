// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cuda_ipc/memory/pins.h"

#include <algorithm>

namespace p2p::cuda_ipc {
namespace {

std::byte* pointer(std::uint64_t address) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): made from a pointer
  return reinterpret_cast<std::byte*>(address);
}

}  // namespace

// To the byte: what lies beside it in the same page may be another buffer of the program, and CUDA refuses
// copies of memory of which only a part is pinned.
Result<PinnedRange> Pins::pin(std::byte* data, std::size_t size) {
  const auto begin = reinterpret_cast<std::uint64_t>(data);
  const std::uint64_t end = begin + size;
  const MutexLock lock(mutex_);
  std::erase_if(ranges_, [](const Range& range) { return range.pin.expired(); });
  PinnedRange whole;
  std::vector<Range> fresh;
  const auto take = [&](std::uint64_t from, std::shared_ptr<const cuda::HostPin> pin) {
    if (from > begin) whole.seams.push_back(pointer(from));
    whole.pins.push_back(std::move(pin));
  };
  // None of ours is there, and yet it is pinned.
  const bool ours = std::any_of(ranges_.begin(), ranges_.end(),
                                [&](const Range& range) { return range.begin < end && begin < range.end; });
  if (!ours && is_pinned_(data, size)) return whole;
  std::uint64_t at = begin;
  const auto fill = [&](std::uint64_t until) -> Status {
    if (at >= until) return {};
    auto pin = pin_(pointer(at), until - at);
    if (!pin) return tl::unexpected(std::move(pin.error()));
    auto shared = std::make_shared<const cuda::HostPin>(std::move(*pin));
    fresh.push_back({at, until, shared});
    take(at, std::move(shared));
    at = until;
    return {};
  };
  for (const Range& range : ranges_) {
    auto pin = range.pin.lock();
    if (!pin || range.end <= begin || range.begin >= end) continue;
    if (const Status filled = fill(range.begin); !filled) return tl::unexpected(filled.error());
    take(range.begin, std::move(pin));
    at = range.end;
  }
  if (const Status filled = fill(end); !filled) return tl::unexpected(filled.error());
  ranges_.insert(ranges_.end(), fresh.begin(), fresh.end());
  std::sort(ranges_.begin(), ranges_.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  return whole;
}

}  // namespace p2p::cuda_ipc
