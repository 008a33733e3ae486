// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <future>
#include <memory>
#include <new>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "node.h"

namespace p2p::weights {

/// The most chunks that a node makes deltas of, or makes of deltas, at a time: half of the processors, since
/// transports and the program have to run, too. One makes deltas of 1.4 GB/s of a version on GPUs and eight
/// of 6.1 (docs/weights.md). Where it is one, the node's thread does it. Tests set it.
inline std::atomic<std::size_t> most_jobs =
    std::clamp<std::size_t>(std::thread::hardware_concurrency() / 2, 1, 8);

/// Memory of a job, kept for the next one: pages that are new cost time.
struct Room {
  std::vector<std::byte> base;
  std::vector<std::byte> fresh;
};

/// Work on a chunk, by a thread of its own. Its end waits for that: some milliseconds, or as long as a GPU
/// may take.
template <class T>
class Job {
 public:
  bool valid() const { return result_.valid(); }
  bool done() const { return result_.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }
  void wait() const {
    if (valid()) result_.wait();
  }
  Result<T> take() { return result_.get(); }

 private:
  friend class Jobs;
  std::shared_ptr<Room> room_;
  std::future<Result<T>> result_;  // ends first
};

/// Starts jobs. Used with the node's lock held.
class Jobs {
 public:
  explicit Jobs(std::shared_ptr<Wake> wake) : wake_(std::move(wake)) {}

  /// `work` takes a room, and returns a result; the wake rings when it is about to be done. Not valid: as
  /// many are under way as may be.
  template <class Work, class T = typename std::invoke_result_t<Work, Room&>::value_type>
  Job<T> start(Work work) {
    Job<T> job;
    job.room_ = room();
    if (!job.room_) return job;
    const auto task = [work = std::move(work), room = job.room_.get(), wake = wake_]() -> Result<T> {
      const std::unique_ptr<Wake, void (*)(Wake*)> rings(wake.get(), [](Wake* at) { at->ring(); });
      try {
        return work(*room);
      } catch (const std::bad_alloc&) {
        return tl::unexpected(Error{ErrorCode::kSystem, "this process is out of memory"});
      }
    };
    const auto here = std::launch::deferred;  // also where no thread can be had
    job.result_ = std::async(most_ > 1 ? std::launch::async | here : here, task);
    if (job.result_.wait_for(std::chrono::seconds(0)) == std::future_status::deferred) job.result_.wait();
    return job;
  }

  /// Lets go of the memory.
  void rest() { rooms_.clear(); }

 private:
  /// One that no job has; null: there is none.
  std::shared_ptr<Room> room() {
    const auto free = std::ranges::find_if(rooms_, [](const auto& one) { return one.use_count() == 1; });
    if (free != rooms_.end()) return *free;
    if (rooms_.size() >= most_) return nullptr;
    return rooms_.emplace_back(std::make_shared<Room>());
  }

  const std::shared_ptr<Wake> wake_;
  const std::size_t most_ = most_jobs;
  std::vector<std::shared_ptr<Room>> rooms_;
};

}  // namespace p2p::weights
