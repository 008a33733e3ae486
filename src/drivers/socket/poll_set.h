// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>

#include "base/unique_fd.h"
#include "p2p/result.h"

namespace p2p::socket {

/// An epoll set with one alarm, used as one descriptor that is readable while a member is ready or the alarm
/// has passed. Level-triggered. One thread at a time, but for `add`, which any may call.
class PollSet {
 public:
  static Result<PollSet> open();

  int fd() const { return epoll_.get(); }

  /// `events` as of epoll. The caller removes `fd` before it closes it, or closes it for good.
  Status add(int fd, std::uint32_t events);
  void change(int fd, std::uint32_t events);
  void remove(int fd);

  /// Makes the set readable from `deadline` on.
  void set_alarm(std::chrono::steady_clock::time_point deadline);
  void clear_alarm();

 private:
  PollSet(UniqueFd epoll, UniqueFd timer) : epoll_(std::move(epoll)), timer_(std::move(timer)) {}

  UniqueFd epoll_;
  UniqueFd timer_;
};

}  // namespace p2p::socket
