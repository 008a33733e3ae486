// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "base/unique_fd.h"
#include "transport/peer_end.h"

namespace p2p {

/// The process is alive, as far as is known, and the channel at the other end has not shut the socket down.
/// If the system cannot tell, it is so: memory had better stay than be used by two.
bool is_open(const UniqueFd& process, const UniqueFd& socket);

/// Over once the peer's channel has shut the socket down, which it does between copies, never during one, or
/// its process has ended. Keeps `kept`, memory that the peer was asked to use, until then.
class ProcessEnd : public PeerEnd {
 public:
  /// `events`: epoll over the other two.
  ProcessEnd(UniqueFd events, UniqueFd socket, UniqueFd process, std::shared_ptr<const void> kept);
  ~ProcessEnd() override;

  int fd() const override { return events_.get(); }
  bool over() const override { return !is_open(process_, socket_); }

 private:
  const UniqueFd events_;
  const UniqueFd socket_;
  const UniqueFd process_;
  std::shared_ptr<const void> kept_;
};

}  // namespace p2p
