// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/observe/path_history.h"

#include <fmt/format.h>

#include <iterator>

namespace p2p::engine {
namespace {

std::string times(std::uint64_t count) { return count == 1 ? "once" : fmt::format("{} times", count); }

std::string ago(PathHistory::Clock::duration time) {
  return fmt::format("{:.1f} s ago", std::chrono::duration<double>(time).count());
}

}  // namespace

void PathHistory::lost(std::string_view which, std::string_view why, Clock::time_point now) {
  MutexLock lock(mutex_);
  ++losses_;
  which_ = which;
  why_ = why;
  lost_at_ = now;
}

void PathHistory::returned(Clock::time_point now) {
  MutexLock lock(mutex_);
  ++returns_;
  returned_at_ = now;
}

std::uint64_t PathHistory::losses() const {
  MutexLock lock(mutex_);
  return losses_;
}

std::uint64_t PathHistory::returns() const {
  MutexLock lock(mutex_);
  return returns_;
}

std::string PathHistory::describe(Clock::time_point now) const {
  MutexLock lock(mutex_);
  if (losses_ == 0) return {};
  std::string text = fmt::format("lost {}, last {}{}{}: {}", times(losses_), which_,
                                 which_.empty() ? "" : " ", ago(now - lost_at_), why_);
  if (returns_ != 0) {
    fmt::format_to(std::back_inserter(text), "; back {}, last {}", times(returns_), ago(now - returned_at_));
  }
  return text;
}

}  // namespace p2p::engine
