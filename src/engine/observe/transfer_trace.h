// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string_view>

#include "p2p/connection.h"
#include "p2p/result.h"
#include "transport/batch.h"

namespace p2p::engine {

class Trace;

/// Tells a trace what becomes of one transfer. Thread-safe.
class TransferTrace {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  struct Subject {
    Operation operation = Operation::kWrite;
    std::uint64_t bytes = 0;
    std::uint64_t blocks = 0;
    ConnectionId connection{};
    std::uint64_t application = 0;  ///< its own number
  };

  /// It was submitted.
  TransferTrace(std::shared_ptr<Trace> trace, const Subject& subject);

  /// Where a item goes. `runner` is one in this process, and the names' strings live as long as it does.
  struct Way {
    const void* runner = nullptr;
    std::string_view transport;
    std::string_view rail;
  };

  /// A channel took a item of it; with the first one it starts.
  void item_sent(const Way& way, const Batch& item, TimePoint at);

  /// It was acknowledged, or not.
  void item_ended(const Way& way, BatchId item, const Status& status);

  void ended(const Status& status);

 private:
  const std::shared_ptr<Trace> trace_;
  const std::uint64_t number_;
  const Operation operation_;
  std::atomic<bool> started_{false};
};

}  // namespace p2p::engine
