// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "device/copier.h"
#include "p2p/result.h"

namespace p2p::device {

/// Copiers made ahead of the channels that will use them, and kept for the next ones: to make one takes
/// milliseconds, which the first transfer would pay. Thread-safe.
class Copiers {
 public:
  using Open = std::function<Result<std::unique_ptr<Copier>>(int device, const Copier::Limits& limits)>;

  static Result<std::unique_ptr<Copier>> open_alone(int device, const Copier::Limits& limits) {
    return Copier::open(device, limits);
  }

  explicit Copiers(const Copier::Limits& limits, Open open = open_alone)
      : limits_(limits), open_(std::move(open)) {}

  const Copier::Limits& limits() const { return limits_; }

  /// Makes one more for `device` unless there are `count`, in use or not. True if it made one.
  Result<bool> make_one(int device, std::size_t count);

  /// Makes as many as are missing until there are `count` for `device`.
  Status reserve(int device, std::size_t count);

  /// One that was made ahead, or a new one.
  Result<std::unique_ptr<Copier>> take(int device);

  /// Keeps it for others; one that is still at work settles, and ends. False if it still copies even then.
  bool give_back(std::unique_ptr<Copier> copier);

  /// With each one for `device` that nobody has, one after the other: the rest can be taken meanwhile.
  void for_each_free(int device, const std::function<void(Copier&)>& visit);

 private:
  struct Kept {
    std::size_t made = 0;  // in use or not
    std::vector<std::unique_ptr<Copier>> free;
  };

  const Copier::Limits limits_;
  const Open open_;
  Mutex mutex_;
  std::map<int, Kept> kept_ P2P_GUARDED_BY(mutex_);
};

}  // namespace p2p::device
