// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/memory/region_watch.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/futex.h"
#include "base/log.h"
#include "base/thread.h"

namespace p2p::engine {
namespace {

using Clock = std::chrono::steady_clock;

// Between two looks: so short that hardly anything stale is read, and a hundred times as long as a look
// takes.
constexpr std::chrono::milliseconds kPause{20};
constexpr int kShare = 100;

}  // namespace

void RegionWatch::add(const std::shared_ptr<Region>& region) {
  const MutexLock lock(mutex_);
  if (stop_.load() != 0) return;
  const bool known = std::ranges::any_of(regions_, [&](const auto& each) { return each.lock() == region; });
  if (!known) regions_.push_back(region);
  if (running_) return;
  if (thread_.joinable()) thread_.join();  // it has nothing left to do but to end
  auto thread = start_thread("p2p-watch", [this] { run(); });
  if (!thread) {
    log(LogLevel::kWarning, "GPU memory that is freed while registered will not be noticed: {}",
        thread.error().message);
    return;
  }
  thread_ = std::move(*thread);
  running_ = true;
}

void RegionWatch::stop() {
  std::thread thread;
  {
    const MutexLock lock(mutex_);
    stop_.store(1);
    thread = std::move(thread_);
  }
  futex_wake_all(stop_);
  if (thread.joinable()) thread.join();
}

std::vector<std::shared_ptr<Region>> RegionWatch::watched() {
  std::vector<std::shared_ptr<Region>> found;
  const MutexLock lock(mutex_);
  std::erase_if(regions_, [](const auto& each) { return each.expired(); });
  for (const auto& each : regions_) {
    if (auto region = each.lock()) found.push_back(std::move(region));
  }
  if (found.empty() || stop_.load() != 0) running_ = false;
  return found;
}

void RegionWatch::forget(const Region& region) {
  const MutexLock lock(mutex_);
  std::erase_if(regions_, [&](const auto& each) { return each.lock().get() == &region; });
}

void RegionWatch::run() {
  for (;;) {
    const auto begin = Clock::now();
    {
      const auto regions = watched();
      if (regions.empty() || stop_.load() != 0) return;
      for (const auto& region : regions) {
        const Status whole = region->check_whole();
        if (whole) continue;
        forget(*region);
        if (!region->withhold()) continue;  // it was taken back in time
        log(LogLevel::kWarning, "{}; peers are told to let go of it", whole.error().message);
      }
    }
    const auto now = Clock::now();
    const auto next = now + std::max<Clock::duration>(kPause, kShare * (now - begin));
    while (stop_.load() == 0 && Clock::now() < next) futex_wait(stop_, 0, next);
  }
}

}  // namespace p2p::engine
