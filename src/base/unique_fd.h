// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <utility>

#include "base/fork.h"

namespace p2p {

/// Owns a file descriptor; -1 is none. Children of this process do not have it: see base/fork.h.
class UniqueFd {
 public:
  UniqueFd() = default;

  /// For a descriptor that comes from elsewhere. One that this process opens: `of`.
  explicit UniqueFd(int fd) : fd_(fd) {
    if (fd >= 0) keep_from_children(fd);
  }
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)), birthplace_(other.birthplace_) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this == &other) return *this;
    reset();
    birthplace_ = other.birthplace_;
    fd_ = std::exchange(other.fd_, -1);
    return *this;
  }
  ~UniqueFd() { reset(); }

  /// Calls `open`, which must not wait, with errno for the caller: the process does not fork meanwhile.
  template <class Open, class... Arguments>
  static UniqueFd of(Open* open, Arguments... arguments) {
    const DescriptorChange change;
    return UniqueFd(static_cast<int>(open(arguments...)));
  }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

  void reset() {
    const int fd = std::exchange(fd_, -1);
    if (fd < 0 || birthplace_.left()) return;
    const DescriptorChange change;
    forget_descriptor(fd);
    ::close(fd);
  }

 private:
  int fd_ = -1;
  Birthplace birthplace_;
};

}  // namespace p2p
