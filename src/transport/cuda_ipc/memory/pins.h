// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "drivers/cuda/memory.h"
#include "drivers/cuda/place.h"
#include "p2p/result.h"

namespace p2p::cuda_ipc {

/// What keeps a range of host memory pinned.
struct PinnedRange {
  std::vector<std::shared_ptr<const cuda::HostPin>> pins;  ///< none: somebody else does

  /// Where one pinned range ends within it and the next begins. Copy engines refuse what lies across.
  std::vector<std::byte*> seams;
};

/// Host memory that this library has pinned, each byte once, whatever regions share it: ranges share pins, so
/// that the end of one leaves the others pinned. Thread-safe.
class Pins {
 public:
  using Pin = std::function<Result<cuda::HostPin>(std::byte* data, std::size_t bytes)>;
  using IsPinned = std::function<bool(const void* data, std::size_t bytes)>;

  explicit Pins(Pin pin = cuda::HostPin::pin, IsPinned is_pinned = cuda::pinned)
      : pin_(std::move(pin)), is_pinned_(std::move(is_pinned)) {}

  /// Pins what is not pinned yet.
  Result<PinnedRange> pin(std::byte* data, std::size_t size);

 private:
  struct Range {
    std::uint64_t begin;
    std::uint64_t end;
    std::weak_ptr<const cuda::HostPin> pin;
  };

  const Pin pin_;
  const IsPinned is_pinned_;
  Mutex mutex_;
  std::vector<Range> ranges_ P2P_GUARDED_BY(mutex_);  // apart from each other, by address
};

}  // namespace p2p::cuda_ipc
