// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "p2p/api.h"
#include "p2p/result.h"

namespace p2p {

/// A digest of bytes, 64 bits, the same of host memory and of that of GPUs. It is of blocks of 4096 bytes, of
/// which the last is filled up with zeros: XXH3 (64 bits) of their XXH3s (seed 0), which are little endian,
/// with the number of bytes as seed. It finds accidents, not forgeries. This one is of host memory, by the
/// calling thread; `Endpoint::digest` is of any.
P2P_API std::uint64_t digest(std::span<const std::byte> bytes);

/// One of registered memory that may still be under way. One thread at a time. Its end waits for a GPU that
/// still reads, for a few seconds at most, and leaves it alone then.
class P2P_API Digest {
 public:
  class State;

  Digest();
  explicit Digest(std::unique_ptr<State> state);
  Digest(Digest&&) noexcept;
  Digest& operator=(Digest&&) noexcept;
  ~Digest();

  bool valid() const { return state_ != nullptr; }

  /// Never blocks.
  bool done() const;

  /// Waits for it. kTimedOut: it goes on, and may be asked again. kSystem: the GPU has failed.
  Result<std::uint64_t> wait(std::chrono::nanoseconds timeout) const;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace p2p
