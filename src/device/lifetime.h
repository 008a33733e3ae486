// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "drivers/cuda/chunk.h"
#include "drivers/cuda/place.h"
#include "p2p/memory.h"
#include "p2p/result.h"

namespace p2p::device {

/// Tells registered device memory from whatever took its address once the program had freed it. Memory that
/// was mapped piece by piece is known by its chunks. Thread-safe.
class Lifetime {
 public:
  /// Of what is at `data` now.
  Lifetime(const std::byte* data, std::uint64_t size, MemoryPlace place);

  /// kNotFound if it was freed since. Host memory, and what CUDA does not know, counts as there. Asks the
  /// driver, which takes 0.2 us and more: once for a batch. Of many chunks it looks at the first, the last
  /// and one that is another one each time.
  Status check(RegionId region) const;

  /// The same with a look at every chunk.
  Status check_all(RegionId region) const;

  /// The allocation around the first byte; base null if CUDA knows none.
  const cuda::Allocation& allocation() const { return first_; }

  /// Of mapped memory; none if it has a gap.
  const std::vector<cuda::Chunk>& chunks() const { return chunks_; }

 private:
  bool ends_are_there() const;
  Status gone(RegionId region, const std::byte* where) const;

  const std::byte* data_;
  cuda::Allocation first_;  // base null: not to be told
  std::vector<cuda::Chunk> chunks_;
  mutable std::atomic<std::size_t> next_{1};  // the chunk to look at next
};

/// A transport's handle on memory, `Registration` or one derived from it, that knows whether the program has
/// freed the memory.
template <class Base>
class WithLifetime : public Base {
 public:
  template <class Info>
  explicit WithLifetime(const Info& info) : Base(info), lifetime_(info.base, info.size, info.place) {}

  Status check_alive() const override { return lifetime_.check(this->info().id); }
  Status check_whole() const override { return lifetime_.check_all(this->info().id); }

  const Lifetime& lifetime() const { return lifetime_; }

 private:
  const Lifetime lifetime_;
};

}  // namespace p2p::device
