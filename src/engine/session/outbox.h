// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <thread>
#include <utility>

#include "base/bytes.h"
#include "base/mutex.h"
#include "engine/session/control_socket.h"
#include "engine/session/replay_log.h"
#include "p2p/result.h"

namespace p2p::engine {

/// What any thread hands a session, until the session's thread takes it: frames to send, in order, and the
/// wish to close. Where nothing waits to leave, a frame goes past it into the socket. It keeps what the peer
/// may have to be sent again.
class Outbox {
 public:
  /// `wake` makes the session's thread call `take` soon. It is called with a lock held.
  explicit Outbox(std::function<void()> wake) : wake_(std::move(wake)) {}

  /// Any thread. Ignored after the first `close` and after `shut`. What is passing is of use now or never:
  /// it is not kept, and while there is no socket it is dropped.
  void put(Bytes frame, bool passing = false);
  void close(Error reason);

  // The rest is for the session's thread.

  struct Taken {
    std::deque<ControlSocket::Frame> frames;
    std::optional<Error> close;  ///< asked for, after these frames
  };

  /// All that waits; the frames only once they may leave.
  Taken take(bool frames);

  bool closing() const;

  /// From here to the end of the turn nobody is woken, for this thread takes what there is by itself; and
  /// what this thread puts is an answer to the peer.
  void begin_turn();
  void end_turn();

  /// So much waits that it is worth sending within the turn.
  bool has_much() const;

  /// Nothing waits to leave through `socket`: whoever puts a frame writes to it, which spares a wake-up. From
  /// the first byte that it does not take, frames wait again.
  void pass_to(ControlSocket& socket);
  void pass_no_more();

  /// How many bytes are kept until the peer has handled them; 0: none.
  void keep(std::size_t most);

  /// The peer has handled so many frames. kProtocol if there were not so many.
  Status confirm(std::uint64_t handled);

  /// There is no socket: what is put is kept for another one.
  void detach();

  /// There is another one: what the peer has handled is kept no longer, all else waits to leave. False if it
  /// is not all kept.
  bool attach(std::uint64_t handled);

  /// Takes no more, and drops what waits. Gives the wish to close.
  std::optional<Error> shut();

 private:
  void wake() P2P_REQUIRES(mutex_);

  const std::function<void()> wake_;
  mutable Mutex mutex_;
  std::deque<ControlSocket::Frame> frames_ P2P_GUARDED_BY(mutex_);
  std::size_t bytes_ P2P_GUARDED_BY(mutex_) = 0;  // of the frames
  ReplayLog log_ P2P_GUARDED_BY(mutex_);
  bool detached_ P2P_GUARDED_BY(mutex_) = false;
  std::optional<Error> close_ P2P_GUARDED_BY(mutex_);
  bool shut_ P2P_GUARDED_BY(mutex_) = false;  // closed, or asked to close
  bool woken_ P2P_GUARDED_BY(mutex_) = false;
  std::optional<std::thread::id> turn_ P2P_GUARDED_BY(mutex_);  // whose it is
  ControlSocket* socket_ P2P_GUARDED_BY(mutex_) = nullptr;      // to be written to at once
};

}  // namespace p2p::engine
