// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include "buffer.h"
#include "p2p/connection.h"
#include "p2p/result.h"
#include "row.h"

namespace p2p::perf {

/// Bound on one transfer: far above what 64 GiB take on any working machine.
inline constexpr std::chrono::minutes kTransferTime{5};

/// Bulk transfers of low priority over a row's connection, in the row's direction, two at a time, from its
/// construction to its end.
class Beside {
 public:
  /// Moves all of `here` to or from `there`, which is as large and outlives it.
  Beside(const Connection& connection, const Row& row, Buffer here, RemoteSpan there);
  ~Beside() { static_cast<void>(stop()); }
  Beside(const Beside&) = delete;
  Beside& operator=(const Beside&) = delete;

  /// Bytes of those that are done.
  std::uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

  /// Waits for those under way.
  Status stop();

 private:
  void run(const Connection& connection, bool read, const RemoteSpan& there);

  const Buffer here_;
  std::atomic<std::uint64_t> bytes_{0};
  std::atomic<bool> stop_{false};
  Status failed_;  // written by the thread
  std::thread thread_;
};

}  // namespace p2p::perf
