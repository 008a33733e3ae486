// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/process_id.h"
#include "base/unique_fd.h"
#include "drivers/socket/local_socket.h"
#include "p2p/result.h"
#include "transport/cuda_ipc/memory/key.h"
#include "transport/peer_end.h"
#include "transport/transport.h"

namespace p2p::cuda_ipc {

/// Tells each of the two channels of a connection when the other copies nothing any more: a Unix socket on
/// which nothing is said, and which a channel shuts once its last copy has ended. The system shuts it for a
/// process that ends. There is none between two network namespaces without a folder to meet in, or where the
/// system forbids it.
///
/// The acceptor listens, and accepts once it is told that the connector has connected, or at its own end: a
/// connection that nobody has accepted serves as well. The connector takes a name that only the two know
/// before it connects, so that it has proven itself in the moment in which it is connected.
class TwinLink {
 public:
  /// None.
  TwinLink() = default;

  /// The acceptor listens from now on.
  static Result<TwinLink> open(const ChannelSetup& setup, const socket::Place& place = {});

  const std::optional<TwinAddress>& address() const { return own_; }

  enum class Meeting : std::uint8_t {
    kNone,     ///< there is no link, as both know
    kAwaited,  ///< the connector will tell
    kMet,      ///< the acceptor is to be told that there is one
    kMissed,   ///< and that there is none
  };

  /// `mine` and `theirs` are the two processes. kPeerGone if the twin has left already.
  Result<Meeting> connect(const ProcessId& mine, const ProcessId& theirs,
                          const std::optional<TwinAddress>& twin);

  /// The connector has told.
  Status met(bool linked);

  /// This side copies nothing any more; unless `through`, for then a copy does not end, and the twin is told
  /// so when this process ends. Gives what tells of the twin: null if that is through, too.
  std::unique_ptr<PeerEnd> leave(bool through);

 private:
  std::string connectors_name(const Token& listener) const;
  UniqueFd accept();

  std::optional<TwinAddress> own_;
  Role role_ = Role::kConnector;
  std::array<std::byte, 32> secret_{};
  socket::Place place_;
  socket::Listener listener_;
  UniqueFd socket_;
};

}  // namespace p2p::cuda_ipc
