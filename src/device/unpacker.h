// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "device/job.h"
#include "kernels/copy.h"
#include "p2p/result.h"

namespace p2p::device {

/// Brings what channels have received from where it came to where it belongs, for all channels of one device:
/// while launches are under way others' receives gather, and the next launch takes all of them. Host memory
/// is copied by the thread that comes to it, in the same order of things. Thread-safe; outlives its channels.
class Unpacker {
 public:
  struct Limits {
    kernels::Grid grid;

    /// Copies of at least this size go by copy engine; 0: all do.
    std::uint64_t bulk_bytes = std::numeric_limits<std::uint64_t>::max();
    std::size_t launches = 2;  ///< under way at once
  };

  /// Copies of one launch, and so of one receive.
  static constexpr std::size_t kLaunchBlocks = 8192;

  /// What one receive needs. Its channel's alone but between `add` and `finished`.
  class Receive {
   public:
    std::vector<kernels::CopyBlock> copies;  ///< at most kLaunchBlocks

    bool finished() const { return state_.load(std::memory_order_acquire) == State::kDone; }

    /// How it ended, once finished.
    const Status& status() const { return status_; }

   private:
    friend class Unpacker;
    enum class State : std::uint8_t { kIdle, kWaiting, kRunning, kDone };
    std::atomic<State> state_{State::kIdle};
    bool alone_ = false;
    Status status_;
  };

  struct Counts {
    std::uint64_t receives = 0;
    std::uint64_t launches = 0;
  };

  /// `device` -1: host memory.
  static Result<std::shared_ptr<Unpacker>> open(int device, const Limits& limits);
  ~Unpacker();

  /// Puts the receive where the next launch finds it.
  void add(std::shared_ptr<Receive> receive);

  /// Takes note of launches that have ended and starts what has gathered, for everyone. To be called by each
  /// channel while a receive of its own is not finished. Never waits for a device or for another thread.
  void advance();

  /// After this nothing of the receive is touched. Waits for a launch that is under way, for a few seconds at
  /// most.
  void withdraw(Receive& receive);

  Counts counts() const;

 private:
  using Receives = std::vector<std::shared_ptr<Receive>>;
  struct Launch {
    Receives receives;
    Job copies;
  };

  Unpacker(int device, const Limits& limits) : device_(device), limits_(limits) {}
  Receives gather() P2P_REQUIRES(mutex_);
  void launch(Receives receives) P2P_REQUIRES(mutex_);
  void copy_here(const Receives& receives) P2P_REQUIRES(mutex_);
  void end_launches() P2P_REQUIRES(mutex_);
  void end(Receives& receives, const Status& status) P2P_REQUIRES(mutex_);

  const int device_;
  const Limits limits_;
  mutable Mutex mutex_;
  std::condition_variable_any ended_;
  std::deque<std::shared_ptr<Receive>> waiting_ P2P_GUARDED_BY(mutex_);
  std::deque<Launch> launches_ P2P_GUARDED_BY(mutex_);  // of the device
  std::size_t copying_ P2P_GUARDED_BY(mutex_) = 0;      // threads that copy host memory
  Counts counts_ P2P_GUARDED_BY(mutex_);
  std::unique_ptr<Copier> copier_ P2P_GUARDED_BY(mutex_);  // its end waits for copies
};

/// One channel's receives, each used again after it ended. Used by one thread at a time.
class SpareReceives {
 public:
  /// A receive that is to do `copies`, which get the place of an earlier receive's.
  std::shared_ptr<Unpacker::Receive> take(std::vector<kernels::CopyBlock>& copies);

  /// True if `receive` has ended well, and is kept now, or is null. False while it is under way; its error if
  /// it failed.
  Result<bool> reclaim(std::shared_ptr<Unpacker::Receive>& receive);

 private:
  std::vector<std::shared_ptr<Unpacker::Receive>> spare_;
};

}  // namespace p2p::device
