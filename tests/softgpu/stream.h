// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace softgpu {

/// A queue of work with a thread of its own. What fails is remembered, and everything after it fails as well.
/// Ends when what is in it is done and nobody has it any more.
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  /// False: illegal access.
  using Work = std::function<bool()>;

  static std::shared_ptr<Stream> open(int device);
  ~Stream();

  int device() const { return device_; }

  /// The number of this work.
  std::uint64_t add(Work work);

  std::uint64_t last() const;
  bool done(std::uint64_t number) const;
  bool failed() const;
  void wait() const;

  /// For all work of all streams, also of those that nobody has any more.
  static void wait_for_all();

 private:
  struct State;
  explicit Stream(int device) : device_(device) {}
  static void run(const std::shared_ptr<State>& state);

  const int device_;
  std::shared_ptr<State> state_;
};

}  // namespace softgpu
