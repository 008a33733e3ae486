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
    log(LogLevel::kDebug, "CUDA device {}: {} receives unpacked by {} launches", device_, counts_.jobs,
        counts_.launches);
  }
}

void Unpacker::add(std::shared_ptr<Job> job) {
  const MutexLock lock(mutex_);
  job->alone_ = false;
  job->status_ = {};
  job->state_.store(Job::State::kWaiting, std::memory_order_relaxed);
  waiting_.push_back(std::move(job));
  ++counts_.jobs;
}

void Unpacker::advance() {
  // Whoever is at it does it for all; what it misses is found at the next call.
  if (!mutex_.try_lock()) return;
  end_launches();
  while (!waiting_.empty() && launches_.size() + copying_ < limits_.launches) {
    Jobs jobs = gather();
    ++counts_.launches;
    if (copier_) {
      launch(std::move(jobs));
    } else {
      copy_here(jobs);
    }
  }
  mutex_.unlock();
}

/// The jobs of one launch, in the order in which they came.
Unpacker::Jobs Unpacker::gather() {
  Jobs jobs;
  std::size_t blocks = 0;
  while (!waiting_.empty()) {
    const std::shared_ptr<Job>& next = waiting_.front();
    const bool fits = blocks + next->copies.size() <= kLaunchBlocks;
    if (!jobs.empty() && (!fits || next->alone_ || jobs.front()->alone_)) break;
    blocks += next->copies.size();
    next->state_.store(Job::State::kRunning, std::memory_order_relaxed);
    jobs.push_back(next);
    waiting_.pop_front();
  }
  return jobs;
}

void Unpacker::launch(Jobs jobs) {
  Copier::List* const list = copier_->take();  // there are as many as launches
  for (const auto& job : jobs) {
    for (const kernels::CopyBlock& copy : job->copies) copier_->add(*list, copy);
  }
  copier_->start(*list);
  launches_.push_back({std::move(jobs), list});
}

/// With the lock open meanwhile: other threads copy what is theirs.
void Unpacker::copy_here(const Jobs& jobs) {
  ++copying_;
  mutex_.unlock();
  for (const auto& job : jobs) {
    kernels::copy_on_host(job->copies);
    job->state_.store(Job::State::kDone, std::memory_order_release);
  }
  mutex_.lock();
  --copying_;
  ended_.notify_all();
}

void Unpacker::end_launches() {
  for (auto launch = launches_.begin(); launch != launches_.end();) {
    if (!copier_->finished(*launch->list)) {
      ++launch;
      continue;
    }
    const Status status = launch->list->status();
    copier_->give_back(*launch->list);
    end(launch->jobs, status);
    launch = launches_.erase(launch);
  }
}

/// A launch that failed does not tell because of which receive: each is tried again by itself, so that one
/// channel's mistake is not another's end.
void Unpacker::end(Jobs& jobs, const Status& status) {
  const bool again = !status && jobs.size() > 1;
  for (auto& job : jobs | std::views::reverse) {
    if (again) {
      job->alone_ = true;
      job->state_.store(Job::State::kWaiting, std::memory_order_relaxed);
      waiting_.push_front(std::move(job));
    } else {
      job->status_ = status;
      job->state_.store(Job::State::kDone, std::memory_order_release);
    }
  }
  ended_.notify_all();
}

void Unpacker::withdraw(Job& job) {
  const auto deadline = std::chrono::steady_clock::now() + kWithdrawWithin;
  const MutexLock lock(mutex_);
  while (true) {
    const auto state = job.state_.load(std::memory_order_acquire);
    if (state == Job::State::kWaiting) {
      std::erase_if(waiting_, [&](const auto& waiting) { return waiting.get() == &job; });
      job.state_.store(Job::State::kIdle, std::memory_order_relaxed);
      return;
    }
    if (state != Job::State::kRunning) return;
    if (std::chrono::steady_clock::now() >= deadline) break;
    end_launches();
    if (job.state_.load(std::memory_order_acquire) == Job::State::kRunning)
      ended_.wait_for(mutex_, kLookEvery);
  }
  log(LogLevel::kError, "a receive is still being unpacked after {} s; its channel is closed all the same",
      kWithdrawWithin.count());
}

Unpacker::Counts Unpacker::counts() const {
  const MutexLock lock(mutex_);
  return counts_;
}

std::shared_ptr<Unpacker::Job> SpareJobs::take(std::vector<kernels::CopyBlock>& copies) {
  if (spare_.empty()) spare_.push_back(std::make_shared<Unpacker::Job>());
  std::shared_ptr<Unpacker::Job> job = std::move(spare_.back());
  spare_.pop_back();
  job->copies.swap(copies);
  return job;
}

Result<bool> SpareJobs::reclaim(std::shared_ptr<Unpacker::Job>& job) {
  if (!job) return true;
  if (!job->finished()) return false;
  if (!job->status()) return tl::unexpected(job->status().error());
  spare_.push_back(std::move(job));
  return true;
}

}  // namespace p2p::device
