// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>

#include "base/unique_fd.h"
#include "p2p/result.h"

namespace p2p::cma {

/// The process at the other end of a channel, by what tells of its end. A socket stays open between the two
/// channels; who shuts it copies nothing any more.
struct Peer {
  UniqueFd events;  ///< epoll over the descriptors that wake a channel
  UniqueFd socket;
  UniqueFd process;  ///< pidfd: the number cannot be taken over unnoticed; empty where it is not seen
  pid_t pid = 0;
  bool apart = false;   ///< the two are in different PID namespaces
  bool reaches = true;  ///< this side copies from and to the peer's memory itself

  Status watch(const UniqueFd& fd) const;

  /// The socket hangs up only at its end: the peer closed its channel, died, or became another program.
  bool is_alive() const;

  /// Looks for its process too, where that has not been done: a child of it may hold the socket open.
  void watch_process();

  /// This side copies nothing any more, for good, and says so. What still wakes is the peer's end.
  bool stop_copying();

  /// Also where a child of this process holds the socket too.
  void hang_up();

  Error gone() const;
  std::string describe() const;
};

}  // namespace p2p::cma
