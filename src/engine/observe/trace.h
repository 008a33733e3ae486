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

/// A file of Chrome trace events, shared by the endpoints of the process that name it. `note` only puts an
/// event into a bounded queue; a thread of its own writes the file, one event a line. Readers of the format
/// need no closing bracket, so a file whose process was killed can be read. Thread-safe.
class Trace {
 public:
  enum class Kind : std::uint8_t { kSubmitted, kStarted, kItemSent, kItemEnded, kEnded };

  struct Event {
    Kind kind = Kind::kSubmitted;
    TransferTrace::Subject subject;
    std::chrono::steady_clock::time_point at;
    std::uint64_t transfer = 0;  ///< from `next`
    std::uint64_t item = 0;      ///< of kItemSent and kItemEnded, unique among those under way
    int thread = 0;              ///< set by `note`
    std::string_view outcome{};  ///< "ok" or an error's code
    char transport[16]{};
    char rail[16]{};
  };

  /// The trace that `Options::trace` names. Null if it names none, or if the file cannot be had: the log says
  /// why.
  static std::shared_ptr<Trace> of_process(const Options& options);

  /// Writes what is in the queue, and the closing bracket. Does nothing in a forked process.
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  /// The next transfer's number, from 1.
  std::uint64_t next() { return next_.fetch_add(1, std::memory_order_relaxed); }

  /// Never blocks on the file. If the queue is full the event is dropped, and the number of those dropped
  /// goes into the file.
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
  std::atomic<std::uint32_t> news_{0};  // futex, 1: there are events, or it ends
  std::atomic<std::uint32_t> stop_{0};  // futex, 1: it ends
  std::thread thread_;

  // Of the thread that writes.
  std::uint64_t written_ = 0;
  std::vector<Event> writing_;

  Mutex mutex_;
  std::vector<Event> queue_ P2P_GUARDED_BY(mutex_);
  std::uint64_t dropped_ P2P_GUARDED_BY(mutex_) = 0;
};

}  // namespace p2p::engine
