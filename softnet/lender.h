// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "base/unique_fd.h"

namespace softnet {

using p2p::UniqueFd;

/// Sends memory without copying it: a pipe holds its pages and a socket takes them from there, so that the
/// peer's read is the only copy where both ends are on one host, and the NIC reads them elsewhere. They must
/// stay as they are until the peer has read them. One comm's.
class Lender {
 public:
  /// Fewer bytes are as quickly copied.
  static constexpr std::size_t kLeast = std::size_t{64} << 10;

  /// Null if the system gives no pipe.
  static std::unique_ptr<Lender> open();

  /// As send_some, `limit` bytes at most. `rest` begins behind what earlier calls have moved of a run, and is
  /// moved to its end before another run is begun.
  long send(int fd, std::span<std::byte> rest, std::size_t limit);

 private:
  void fill(std::span<std::byte> rest);

  UniqueFd out_;
  UniqueFd in_;
  std::size_t held_ = 0;  // bytes in the pipe
};

}  // namespace softnet
