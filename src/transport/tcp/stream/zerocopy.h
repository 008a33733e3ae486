// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>

#include "p2p/result.h"

namespace p2p::tcp {

/// Keeps count of the MSG_ZEROCOPY sends of one socket and of those that the kernel has let go of.
class Zerocopy {
 public:
  /// Tries to switch it on; sends below `least_bytes` are not worth it. 0: never.
  void enable(int fd, std::size_t least_bytes);

  bool worthwhile(std::size_t bytes) const { return on_ && bytes >= least_bytes_; }

  /// A send was made; answers its number, from 1.
  std::uint64_t count_send();

  /// All sends up to this number are done with.
  std::uint64_t released() const { return released_; }
  bool outstanding() const { return !done_.empty(); }

  /// Reads what the kernel has to say. The first send that it had to copy after all ends the use of it.
  Status collect(int fd);

 private:
  std::uint64_t released_ = 0;
  std::deque<bool> done_;  // of the sends after released_
  std::size_t least_bytes_ = 0;
  bool on_ = false;
};

}  // namespace p2p::tcp
