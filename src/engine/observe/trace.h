// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/thread.h"
#include "base/unique_fd.h"
#include "engine/observe/transfer_trace.h"
#include "p2p/options.h"

namespace p2p::engine {

/// A file of Chrome trace events, one for the process, shared by its endpoints. Whoever notes an event only
/// puts it into a queue, which is bounded; a thread writes. Each line is an event, and the file is good
/// without its last bracket, so that what was written stays good when the process is killed. Thread-safe.
class Trace {
 public:
  enum class Kind : std::uint8_t { kSubmitted, kStarted, kPieceSent, kPieceEnded, kEnded };

  struct Event {
    Kind kind = Kind::kSubmitted;
    TransferTrace::Subject subject;
    std::chrono::steady_clock::time_point at;
    std::uint64_t transfer = 0;
    std::uint64_t item = 0;
    int thread = 0;
    std::string_view outcome{};  ///< "ok" or an error's code
    char transport[16]{};
    char rail[16]{};
  };

  /// The one that the options name; null if they name none or it cannot be written, which the log says.
  static std::shared_ptr<Trace> of_process(const Options& options);

  /// Writes what is in the queue, and the last bracket.
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  /// Numbers transfers from 1.
  std::uint64_t next() { return next_.fetch_add(1, std::memory_order_relaxed); }

  /// Adds the thread. Dropped, and counted, if the queue is full.
  void note(Event event);

 private:
  Trace(UniqueFd file, std::string name, std::uint64_t most_bytes);
  static Result<std::shared_ptr<Trace>> open(const std::string& name, std::uint64_t most_bytes);
  void run();
  void write_queued();
  void write(std::string_view text);

  const UniqueFd file_;
  const std::string name_;
  const std::uint64_t most_bytes_;
  const Birthplace birthplace_;
  std::atomic<std::uint64_t> next_{1};
  std::atomic<bool> full_{false};
  std::atomic<std::uint32_t> news_{0};  // futex: something is in the queue, or it ends
  std::atomic<std::uint32_t> stop_{0};  // futex
  std::thread thread_;

  // The writer's.
  std::uint64_t written_ = 0;
  std::vector<Event> writing_;

  Mutex mutex_;
  std::vector<Event> queue_ P2P_GUARDED_BY(mutex_);
  std::uint64_t dropped_ P2P_GUARDED_BY(mutex_) = 0;
};

}  // namespace p2p::engine
