// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "drivers/nccl_net/comm.h"

namespace p2p::nccl_net {

/// Plugins hold this many requests a comm; the 17th fails.
inline constexpr std::size_t kMaxRequests = 16;

/// The sends of one comm: at most 16, tested oldest first. The only way to send. Memory of a send is in use
/// until `poll` has told its end.
class SendWindow {
 public:
  explicit SendWindow(SendComm comm, std::size_t depth = kMaxRequests);

  bool full() const { return posted_ - done_ == depth_; }
  bool empty() const { return posted_ == done_; }
  std::uint64_t posted() const { return posted_; }
  const std::shared_ptr<Comm>& comm() const { return comm_.comm; }

  /// False: full, or the plugin cannot take it now. `memory` belongs to this comm and covers the range.
  Result<bool> post(const std::byte* data, std::size_t size, const MemoryHandle& memory);

  /// Lets the plugin work; true if the oldest send has ended (its bytes may be reused, the peer may not have
  /// them yet).
  Result<bool> poll();

 private:
  SendComm comm_;
  std::size_t depth_;
  std::array<void*, kMaxRequests> requests_{};
  std::uint64_t posted_ = 0;
  std::uint64_t done_ = 0;
};

/// A receive whose bytes have come and, of CUDA memory, can be read there. With `unpack` they lie in the
/// pool, as the entries say, until `ReceiveWindow::consume`.
struct Arrival {
  std::uint64_t sequence = 0;  ///< of the comm's receives, from 0
  bool unpack = false;
  std::span<const abi::UnpackEntry> entries;
};

/// The receives of one comm: at most 16 between post and consume, tested oldest first, consumed in order by
/// construction. The only way to receive.
class ReceiveWindow {
 public:
  explicit ReceiveWindow(RecvComm comm, std::size_t depth = kMaxRequests);

  bool full() const { return posted_ - consumed_ == depth_; }
  bool empty() const { return posted_ == consumed_; }
  bool waiting() const { return posted_ != arrived_; }
  const RecvComm& comm() const { return comm_; }

  /// False: full, or the plugin cannot take it now.
  Result<bool> post(std::byte* data, std::size_t size, const MemoryHandle& memory);

  /// Lets the plugin work; the next receive in order of posts if it has arrived. Where the plugin flushes
  /// what it receives into CUDA memory, the flush has ended by then.
  Result<std::optional<Arrival>> poll();

  /// Gives the oldest arrived receive back to the plugin: nobody reads its part of the pool any more.
  Status consume();

 private:
  struct Receive {
    void* request = nullptr;
    std::byte* data = nullptr;
    std::size_t size = 0;
    void* memory = nullptr;  ///< its registration, if it is to be flushed
  };
  Result<bool> done(void* request, const char* what);
  Result<bool> received(const Receive& receive);

  RecvComm comm_;
  std::size_t depth_;
  bool flushes_;
  std::array<Receive, kMaxRequests> receives_{};
  void* flush_ = nullptr;  // of the oldest receive, once that is done; it has the place of its request
  std::uint64_t posted_ = 0;
  std::uint64_t arrived_ = 0;
  std::uint64_t consumed_ = 0;
};

}  // namespace p2p::nccl_net
