// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

#include "p2p/result.h"
#include "p2p/transfer.h"

namespace p2p::python {

/// How long a wait stays away from the interpreter before it looks for signals.
inline constexpr std::chrono::milliseconds kSlice{50};

/// Lets other Python threads run while it lives. Counted, so that the interpreter's end can wait for calls
/// that are under way: a thread that asks for the GIL later than that is ended inside its C++ frames. The
/// count changes with the GIL held, so who holds it and sees none away knows that none will come back.
class Released {
 public:
  Released() {
    away_.fetch_add(1, std::memory_order_relaxed);
    thread_ = PyEval_SaveThread();
  }
  ~Released() {
    PyEval_RestoreThread(thread_);
    away_.fetch_sub(1, std::memory_order_relaxed);
  }
  Released(const Released&) = delete;
  Released& operator=(const Released&) = delete;

  /// Called with the GIL.
  static int away() { return away_.load(std::memory_order_relaxed); }
  static void reset_after_fork() { away_.store(0, std::memory_order_relaxed); }

 private:
  inline static std::atomic<int> away_{0};
  PyThreadState* thread_;
};

/// Counts the forks that led to this process. Asked for the first time by the first endpoint.
std::uint64_t fork_generation();

/// A deadline that may be absent.
using Deadline = std::optional<std::chrono::steady_clock::time_point>;

/// From Python's seconds; none for None. Raises ValueError for NaN and negative numbers.
Deadline deadline_in(std::optional<double> seconds);

/// The time to wait next: a slice, or what is left of it.
std::chrono::nanoseconds next_slice(const Deadline& deadline);

inline bool passed(const Deadline& deadline) {
  return deadline && std::chrono::steady_clock::now() >= *deadline;
}

enum class OnInterrupt { kLeave, kCancel };

/// Called with the GIL: waits without it until `transfer` is done and gives its outcome, or kTimedOut.
/// Throws when a signal handler raised (after the transfer was cancelled, for kCancel) and gives kCancelled
/// when `closing` is set.
Status wait_done(const Transfer& transfer, const Deadline& deadline, const std::atomic<bool>& closing,
                 OnInterrupt on_interrupt);

}  // namespace p2p::python
