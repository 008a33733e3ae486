// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "gil.h"

#include <nanobind/nanobind.h>
#include <pthread.h>

#include <algorithm>
#include <cmath>

#include "convert/errors.h"

namespace p2p::python {
namespace {

constexpr std::chrono::seconds kCancelGrace{1};

std::atomic<std::uint64_t> generation{0};

void note_fork() {
  generation.fetch_add(1, std::memory_order_relaxed);
  Released::reset_after_fork();
}

/// The memory is the caller's again when the call returns, so an abandoned transfer is ended first.
void abandon(const Transfer& transfer) {
  Released released;
  transfer.cancel();
  (void)transfer.wait(kCancelGrace);
}

}  // namespace

std::uint64_t fork_generation() {
  static const int installed = pthread_atfork(nullptr, nullptr, note_fork);
  (void)installed;
  return generation.load(std::memory_order_relaxed);
}

Deadline deadline_in(std::optional<double> seconds) {
  if (!seconds) return std::nullopt;
  if (!(*seconds >= 0)) throw nanobind::value_error("timeout must be a number of seconds, at least 0");
  constexpr double kLongest = 1e9;  // 30 years: far from the clock's overflow
  const auto span = std::chrono::duration<double>(std::min(*seconds, kLongest));
  return std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::nanoseconds>(span);
}

std::chrono::nanoseconds next_slice(const Deadline& deadline) {
  if (!deadline) return kSlice;
  const auto left = *deadline - std::chrono::steady_clock::now();
  return std::clamp<std::chrono::nanoseconds>(left, std::chrono::nanoseconds{0}, kSlice);
}

Status wait_done(const Transfer& transfer, const Deadline& deadline, const std::atomic<bool>& closing,
                 OnInterrupt on_interrupt) {
  for (;;) {
    {
      Released released;
      (void)transfer.wait(next_slice(deadline));
    }
    if (transfer.done()) return transfer.status();
    if (PyErr_CheckSignals() != 0) {
      nanobind::python_error raised;
      if (on_interrupt == OnInterrupt::kCancel) abandon(transfer);
      throw raised;
    }
    if (closing.load(std::memory_order_relaxed)) {
      abandon(transfer);
      return failure(ErrorCode::kCancelled, "the endpoint was closed while the transfer was under way");
    }
    if (passed(deadline)) return failure(ErrorCode::kTimedOut, "the transfer was not done in time");
  }
}

}  // namespace p2p::python
