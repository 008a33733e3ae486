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

/// Notes the events of one transfer in a trace. Thread-safe.
class TransferTrace {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  struct Subject {
    Operation operation = Operation::kWrite;
    std::uint64_t bytes = 0;
    std::uint64_t blocks = 0;
    ConnectionId connection{};
    std::uint64_t application = 0;  ///< PostOptions::trace_id
  };

  /// Notes that it was submitted.
  TransferTrace(std::shared_ptr<Trace> trace, const Subject& subject);

  /// The channel that an item goes over. `runner` tells the channels of this process apart; the names must
  /// live as long as it does.
  struct Way {
    const void* runner = nullptr;
    std::string_view transport;
    std::string_view rail;
  };

  /// A channel took an item of it at `at`. The first one is also the start of the transfer.
  void item_sent(const Way& way, const Batch& item, TimePoint at);

  /// The peer has acknowledged the item, or it failed.
  void item_ended(const Way& way, BatchId item, const Status& status);

  /// The outcome of the whole transfer.
  void ended(const Status& status);

 private:
  const std::shared_ptr<Trace> trace_;
  const std::uint64_t number_;
  const Operation operation_;
  std::atomic<bool> started_{false};
};

}  // namespace p2p::engine
