// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "drivers/cuda/place.h"
#include "p2p/memory.h"
#include "p2p/result.h"

namespace p2p::device {

/// Tells registered device memory from whatever took its address once the program had freed it. Of memory
/// that was mapped piece by piece it knows the first and the last. Thread-safe.
class Lifetime {
 public:
  /// Of what is at `data` now.
  Lifetime(const std::byte* data, std::uint64_t size, MemoryPlace place);

  /// kNotFound if it was freed since. Host memory, and what CUDA does not know, counts as there. Asks the
  /// driver, which takes 0.2 us and more: once for a batch.
  Status check(RegionId region) const;

 private:
  bool is_there() const;

  const std::byte* data_;
  std::uint64_t size_;
  cuda::Allocation first_;  // base null: not to be told
  cuda::Allocation last_;   // of mapped memory
};

/// A transport's handle on memory, `Registration` or one derived from it, that knows whether the program has
/// freed the memory.
template <class Base>
class WithLifetime : public Base {
 public:
  template <class Info>
  explicit WithLifetime(const Info& info) : Base(info), lifetime_(info.base, info.size, info.place) {}

  Status check_alive() const override { return lifetime_.check(this->info().id); }

 private:
  const Lifetime lifetime_;
};

}  // namespace p2p::device
