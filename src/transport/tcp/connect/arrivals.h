// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "drivers/socket/poll_set.h"
#include "transport/stream_port.h"

namespace p2p::tcp {

/// Connections on their way from the endpoint's port to one channel: they come on the session's thread, in
/// the channel's poll set at once, and are taken by the channel's worker.
class Arrivals {
 public:
  /// `polls` outlives it.
  Arrivals(std::shared_ptr<StreamPort> port, const StreamPort::Token& token, socket::PollSet& polls);
  ~Arrivals();
  Arrivals(const Arrivals&) = delete;
  Arrivals& operator=(const Arrivals&) = delete;

  /// Those that came since the last call, in order.
  std::vector<UniqueFd> take();

 private:
  void put(UniqueFd socket);

  const std::shared_ptr<StreamPort> port_;
  const StreamPort::Token token_;
  socket::PollSet& polls_;
  Mutex mutex_;
  std::vector<UniqueFd> waiting_ P2P_GUARDED_BY(mutex_);
};

}  // namespace p2p::tcp
