// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <memory>

#include "base/bytes.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "p2p/result.h"
#include "transport/peer_access.h"
#include "transport/transport.h"

namespace p2p::loopback {

/// The end of a channel that the channel at the other end sees. Shared by the two; thread-safe.
class Port {
 public:
  using Name = std::array<std::byte, 16>;

  /// A port that `find` returns, under a random name, for as long as it lives.
  static Result<std::shared_ptr<Port>> open(const ChannelSetup& setup,
                                            std::shared_ptr<const RegistrationTable> regions);

  /// The port of this process whose name these bytes are, if it is the other end of the session of `setup`:
  /// its incarnations, its secret, the other role. A name alone proves nothing, since a peer can send back
  /// what it was sent.
  static Result<std::shared_ptr<Port>> find(ByteView name, const ChannelSetup& setup);

  ~Port();

  const Name& name() const { return name_; }
  const PeerAccess& regions() const { return regions_; }

  /// Makes `partner` the one that `close` wakes; false if it already had one or is closed.
  bool attach(const std::shared_ptr<Port>& partner);
  void close();
  bool closed() const { return closed_.load(std::memory_order_acquire); }

  /// Readable once the partner has closed.
  int wake_fd() const { return wake_.get(); }

 private:
  Port(const ChannelSetup& setup, std::shared_ptr<const RegistrationTable> regions);
  bool ends_session_of(const ChannelSetup& setup) const;

  Name name_{};
  const ChannelSetup setup_;
  PeerAccess regions_;
  UniqueFd wake_;
  std::atomic<bool> closed_{false};
  Mutex mutex_;
  std::weak_ptr<Port> partner_ P2P_GUARDED_BY(mutex_);
  bool attached_ P2P_GUARDED_BY(mutex_) = false;
};

}  // namespace p2p::loopback
