// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cuda_ipc/copies/late_copies.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

namespace p2p::cuda_ipc {
namespace {

// Between looks, of which each asks the driver.
constexpr std::chrono::milliseconds kBetweenLooks{5};

}  // namespace

LateCopies::~LateCopies() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_all();
  looking_.stop();
}

void LateCopies::keep(std::shared_ptr<const void> what, Ended ended) {
  {
    const MutexLock lock(mutex_);
    late_.push_back({std::move(what), std::move(ended)});
    if (late_.size() > 1) return;  // somebody looks already
  }
  static_cast<void>(looking_.post([this] { look(); }));
}

void LateCopies::look() {
  for (bool more = true; more;) {
    std::vector<Late> over;  // outside the lock: to let go of memory takes time
    const MutexLock lock(mutex_);
    stopped_.wait_for(mutex_, kBetweenLooks, [this]() P2P_REQUIRES(mutex_) { return stop_; });
    if (stop_) return;
    const auto ended =
        std::partition(late_.begin(), late_.end(), [](const Late& late) { return !late.ended(); });
    std::move(ended, late_.end(), std::back_inserter(over));
    late_.erase(ended, late_.end());
    more = !late_.empty();
  }
}

}  // namespace p2p::cuda_ipc
