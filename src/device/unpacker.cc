// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "device/unpacker.h"

#include <algorithm>
#include <chrono>
#include <ranges>
#include <utility>

#include "base/log.h"

namespace p2p::device {
namespace {

constexpr std::chrono::seconds kWithdrawWithin{5};
// A device tells nobody that it is through: between looks at it.
constexpr std::chrono::milliseconds kLookEvery{1};

}  // namespace

Result<std::shared_ptr<Unpacker>> Unpacker::open(int device, const Limits& limits) {
  std::shared_ptr<Unpacker> unpacker(new Unpacker(device, limits));
  if (device < 0) return unpacker;
  auto copier = Copier::open(device, {.grid = limits.grid,
                                      .bulk_bytes = limits.bulk_bytes,
                                      .blocks = kLaunchBlocks,
                                      .lists = limits.launches});
  if (!copier) return tl::unexpected(copier.error());
  const MutexLock lock(unpacker->mutex_);
  unpacker->copier_ = std::move(*copier);
  return unpacker;
}

Unpacker::~Unpacker() {
  const MutexLock lock(mutex_);
  if (device_ >= 0) {
    log(LogLevel::kDebug, "CUDA device {}: {} receives unpacked by {} launches", device_, counts_.receives,
        counts_.launches);
  }
}

void Unpacker::add(std::shared_ptr<Receive> receive) {
  const MutexLock lock(mutex_);
  receive->alone_ = false;
  receive->status_ = {};
  receive->state_.store(Receive::State::kWaiting, std::memory_order_relaxed);
  waiting_.push_back(std::move(receive));
  ++counts_.receives;
}

void Unpacker::advance() {
  // Whoever is at it does it for all; what it misses is found at the next call.
  if (!mutex_.try_lock()) return;
  end_launches();
  while (!waiting_.empty() && launches_.size() + copying_ < limits_.launches) {
    Receives receives = gather();
    ++counts_.launches;
    if (copier_) {
      launch(std::move(receives));
    } else {
      copy_here(receives);
    }
  }
  mutex_.unlock();
}

/// The receives of one launch, in the order in which they came.
Unpacker::Receives Unpacker::gather() {
  Receives receives;
  std::size_t blocks = 0;
  while (!waiting_.empty()) {
    const std::shared_ptr<Receive>& next = waiting_.front();
    const bool fits = blocks + next->copies.size() <= kLaunchBlocks;
    if (!receives.empty() && (!fits || next->alone_ || receives.front()->alone_)) break;
    blocks += next->copies.size();
    next->state_.store(Receive::State::kRunning, std::memory_order_relaxed);
    receives.push_back(next);
    waiting_.pop_front();
  }
  return receives;
}

void Unpacker::launch(Receives receives) {
  Launch launch;
  const Job::Part part = launch.copies.part(*copier_);  // which has as many lists as there are launches
  for (const auto& receive : receives) {
    for (const kernels::CopyBlock& copy : receive->copies) part.add(copy);
  }
  launch.copies.start();
  launch.receives = std::move(receives);
  launches_.push_back(std::move(launch));
}

/// With the lock open meanwhile: other threads copy what is theirs.
void Unpacker::copy_here(const Receives& receives) {
  ++copying_;
  mutex_.unlock();
  for (const auto& receive : receives) {
    kernels::copy_on_host(receive->copies);
    receive->state_.store(Receive::State::kDone, std::memory_order_release);
  }
  mutex_.lock();
  --copying_;
  ended_.notify_all();
}

void Unpacker::end_launches() {
  for (auto launch = launches_.begin(); launch != launches_.end();) {
    if (!launch->copies.finished()) {
      ++launch;
      continue;
    }
    end(launch->receives, launch->copies.status());
    launch = launches_.erase(launch);
  }
}

/// A launch that failed does not tell because of which receive: each is tried again by itself, so that one
/// channel's mistake is not another's end.
void Unpacker::end(Receives& receives, const Status& status) {
  const bool again = !status && receives.size() > 1;
  for (auto& receive : receives | std::views::reverse) {
    if (again) {
      receive->alone_ = true;
      receive->state_.store(Receive::State::kWaiting, std::memory_order_relaxed);
      waiting_.push_front(std::move(receive));
    } else {
      receive->status_ = status;
      receive->state_.store(Receive::State::kDone, std::memory_order_release);
    }
  }
  ended_.notify_all();
}

void Unpacker::withdraw(Receive& receive) {
  const auto deadline = std::chrono::steady_clock::now() + kWithdrawWithin;
  const MutexLock lock(mutex_);
  while (true) {
    const auto state = receive.state_.load(std::memory_order_acquire);
    if (state == Receive::State::kWaiting) {
      std::erase_if(waiting_, [&](const auto& waiting) { return waiting.get() == &receive; });
      receive.state_.store(Receive::State::kIdle, std::memory_order_relaxed);
      return;
    }
    if (state != Receive::State::kRunning) return;
    if (std::chrono::steady_clock::now() >= deadline) break;
    end_launches();
    if (receive.state_.load(std::memory_order_acquire) == Receive::State::kRunning)
      ended_.wait_for(mutex_, kLookEvery);
  }
  log(LogLevel::kError, "a receive is still being unpacked after {} s; its channel is closed all the same",
      kWithdrawWithin.count());
}

Unpacker::Counts Unpacker::counts() const {
  const MutexLock lock(mutex_);
  return counts_;
}

std::shared_ptr<Unpacker::Receive> SpareReceives::take(std::vector<kernels::CopyBlock>& copies) {
  if (spare_.empty()) spare_.push_back(std::make_shared<Unpacker::Receive>());
  std::shared_ptr<Unpacker::Receive> receive = std::move(spare_.back());
  spare_.pop_back();
  receive->copies.swap(copies);
  return receive;
}

Result<bool> SpareReceives::reclaim(std::shared_ptr<Unpacker::Receive>& receive) {
  if (!receive) return true;
  if (!receive->finished()) return false;
  if (!receive->status()) return tl::unexpected(receive->status().error());
  spare_.push_back(std::move(receive));
  return true;
}

}  // namespace p2p::device
