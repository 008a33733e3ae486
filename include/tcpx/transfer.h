// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "p2p/api.h"
#include "p2p/result.h"
#include "tcpx/session.h"

namespace tcpx {

/// A group of sends and receives with one remote that are waited for together. The n-th send of one side
/// meets the n-th receive of the other and both name the same size: the plugin does not tell lengths, so a
/// mismatch is found only where an UNPACK device lists the fragments. Progress happens in `isComplete` and
/// `wait`, on both sides, for everything that the session has with the remote. One thread at a time.
class P2P_API TcpxTransfer {
 public:
  /// The session outlives what is posted, or fails it.
  TcpxTransfer(const TcpxSession& session, std::string remote_name);
  TcpxTransfer(TcpxTransfer&&) noexcept;
  TcpxTransfer& operator=(TcpxTransfer&&) noexcept;

  /// Leaves what is under way to the session, as `release`.
  ~TcpxTransfer();

  /// Starts to send `size` bytes from `offset` of the memory. Never blocks. The memory is in use until
  /// complete.
  p2p::Status postSend(std::uint64_t mem_id, std::uint64_t offset, std::uint64_t size);

  /// Starts to receive. Complete means: the bytes are in their place, and what the plugin held of them has
  /// been given back.
  p2p::Status postRecv(std::uint64_t mem_id, std::uint64_t offset, std::uint64_t size);

  /// Lets the channels work; true if all that was posted is complete, the error if something failed.
  p2p::Result<bool> isComplete();

  /// Polls until complete; kTimedOut leaves everything under way.
  p2p::Status wait(std::chrono::nanoseconds timeout);

  /// Forgets what was posted; what is not complete goes on without an owner. Ready for new posts.
  void release();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tcpx
