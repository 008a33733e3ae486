// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/background.h"
#include "base/mutex.h"
#include "device/copiers.h"
#include "p2p/result.h"

namespace p2p::device {

/// What the streams of an endpoint, of all transports, share to stage device memory: pinned slots, and
/// copiers. Made ahead by a thread of its own once a device and a stream are known, so that no transfer waits
/// for pinned memory; the thread ends when all is there. Thread-safe.
class StagingPool {
 public:
  struct Limits {
    std::size_t slot_bytes = 0;
    std::size_t slots_per_stream = 0;  ///< made ahead
    std::size_t slots = 0;             ///< made ahead at most; more only for streams that have next to none
    Copier::Limits copier;             ///< the kernel that stands by is one for all on a device
  };

  /// Pinned memory on the NUMA node of `device` (-1: on any), freed with the last pointer to it.
  using Allocate = std::function<Result<std::shared_ptr<std::byte>>(std::size_t bytes, int device)>;
  static Result<std::shared_ptr<std::byte>> allocate_pinned(std::size_t bytes, int device);

  explicit StagingPool(const Limits& limits, Allocate allocate = allocate_pinned,
                       Copiers::Open open = nullptr);
  ~StagingPool();

  /// Memory of `device` will be staged.
  void add_device(int device);

  /// A stream that may stage has come, or gone.
  void add_stream();
  void remove_stream();

  /// A slot; null if none is free, unless the caller must have one.
  Result<std::byte*> take(bool must);
  void give_back(std::byte* slot);

  /// For lists between slots and devices.
  Copiers& copiers() { return copiers_; }

  /// True once what the known devices and streams want is there, or could not be made.
  bool settled() const;

  /// Slots there are, in use or not.
  std::size_t slots() const;

 private:
  enum class Lack : std::uint8_t { kNothing, kSlots, kCopier };
  struct Want {
    Lack lack = Lack::kNothing;
    int device = -1;
    std::size_t streams = 0;
  };

  void make_ahead() P2P_REQUIRES(mutex_);
  void run();
  Result<std::unique_ptr<Copier>> open_copier(int device, const Copier::Limits& limits);
  Status make(const Want& want);
  Want next() const P2P_REQUIRES(mutex_);
  Result<std::byte*> grow();

  const Limits limits_;
  const Allocate allocate_;
  Mutex standbys_mutex_;
  std::map<int, std::shared_ptr<Standby>> standbys_ P2P_GUARDED_BY(standbys_mutex_);
  Copiers copiers_;
  mutable Mutex mutex_;
  std::vector<std::shared_ptr<std::byte>> slabs_ P2P_GUARDED_BY(mutex_);
  std::vector<std::byte*> free_ P2P_GUARDED_BY(mutex_);
  std::size_t slots_ P2P_GUARDED_BY(mutex_) = 0;
  int first_device_ P2P_GUARDED_BY(mutex_) = -1;
  std::map<int, std::size_t> devices_ P2P_GUARDED_BY(mutex_);  // to how many streams have copiers there
  std::size_t streams_ P2P_GUARDED_BY(mutex_) = 0;
  bool making_ P2P_GUARDED_BY(mutex_) = false;
  bool stop_ P2P_GUARDED_BY(mutex_) = false;
  bool failed_ P2P_GUARDED_BY(mutex_) = false;
  Background thread_{"p2p-staging"};
};

}  // namespace p2p::device
