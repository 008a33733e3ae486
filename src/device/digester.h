// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "drivers/cuda/memory.h"
#include "drivers/cuda/stream.h"
#include "kernels/digest.h"
#include "p2p/result.h"

namespace p2p::device {

/// Computes digests (p2p/digest.h) of memory of one device, by kernels. Thread-safe.
class Digester : public std::enable_shared_from_this<Digester> {
 public:
  static std::shared_ptr<Digester> make(int device) {
    return std::shared_ptr<Digester>(new Digester(device));
  }
  ~Digester();
  Digester(const Digester&) = delete;
  Digester& operator=(const Digester&) = delete;

  /// One that is under way. Used by one thread at a time.
  class Work {
   public:
    /// Waits for the kernel, for a few seconds at most.
    ~Work();
    Work(const Work&) = delete;
    Work& operator=(const Work&) = delete;

    /// Never blocks. The driver is asked only when it takes long, to find out whether it failed.
    bool finished();

    /// Once finished.
    Result<std::uint64_t> value() const;

   private:
    friend class Digester;
    struct Slot;
    Work(std::shared_ptr<Digester> digester, std::unique_ptr<Slot> slot);
    Status start(std::span<const std::span<const std::byte>> ranges, std::uint64_t total);

    const std::shared_ptr<Digester> digester_;
    std::unique_ptr<Slot> slot_;
    std::uint64_t size_ = 0;  // bytes
    bool under_way_ = false;
    std::chrono::steady_clock::time_point asked_;
    Status status_;
  };

  /// Starts one of ranges of the device's memory, as if they lay in a row. What they need is made when so
  /// many are under way at once for the first time, or with so many ranges or bytes, and kept.
  Result<std::unique_ptr<Work>> start(std::span<const std::span<const std::byte>> ranges);

 private:
  explicit Digester(int device);

  const int device_;
  Mutex mutex_;
  std::vector<std::unique_ptr<Work::Slot>> free_ P2P_GUARDED_BY(mutex_);
};

}  // namespace p2p::device
