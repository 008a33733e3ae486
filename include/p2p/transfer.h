// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "p2p/api.h"
#include "p2p/result.h"

namespace p2p {

namespace engine {
class TransferState;
class PreparedList;
}  // namespace engine

/// A handle on one submitted operation. Copies share the operation; dropping all of them does not end it.
/// Any thread may use it.
///
/// Done means: the bytes are visible at the destination (write, send), or here (read, recv), or the
/// operation failed or was cancelled and neither side touches its memory for it any more. If it failed with
/// its connection, that is so here alone: what was under way may still land at the peer, which is told of the
/// end by its own transfers and by `MemoryRegion::release`.
class P2P_API Transfer {
 public:
  Transfer() = default;
  explicit Transfer(std::shared_ptr<engine::TransferState> state);

  bool valid() const { return state_ != nullptr; }

  /// Never blocks.
  bool done() const;

  /// The outcome once done; kTimedOut if the time passed first, and the operation goes on.
  Status wait(std::chrono::nanoseconds timeout) const;

  /// The outcome; success while not yet done.
  Status status() const;

  /// Asks for an early end and returns at once. Bytes not yet under way never leave; the transfer is done
  /// (kCancelled, or its true outcome if that came first) when those under way have landed or died.
  void cancel() const;

  /// Bytes of the operation; for `recv`, the bytes that came, once done.
  std::uint64_t bytes() const;

  /// Runs `callback` once when done, at once if it already is. It runs on an engine thread and must not
  /// block. What it throws is logged.
  void on_done(std::function<void()> callback) const;

 private:
  std::shared_ptr<engine::TransferState> state_;
};

/// Which of the writes and reads of one connection and transport goes first. While a higher class was used
/// within the last 10 s, a lower one has only a short queue in the channels. One that waits behind a higher
/// one gets its turn at least every 50 ms.
enum class Priority : std::uint8_t { kHigh, kNormal, kLow };

/// What accompanies a posted transfer.
struct PostOptions {
  /// Delivered to the peer once, after the bytes are visible there. For a read: once they are visible here.
  /// It may be empty text; none is sent without a value.
  std::optional<std::string> notification = std::nullopt;

  /// CUDA stream (a cudaStream_t of any device): local memory is touched only when all is done that the
  /// stream has to do at the time of the call; what it is given later does not count. Null: the memory is
  /// ready now. The legacy default stream is cudaStreamLegacy, (void*)1. A stream that cannot be waited for
  /// fails the transfer.
  void* cuda_stream = nullptr;

  /// The application's own number for the transfer, for traces (Options::trace).
  std::uint64_t trace_id = 0;

  Priority priority = Priority::kNormal;

  /// Bytes a second that it is given to the channels at, on average over 10 ms or 16 KiB, whichever is more;
  /// 0: as fast as they take it.
  std::uint64_t rate = 0;

  /// Done only when the digest (p2p/digest.h) of the memory written, which its owner computes, is that of the
  /// source; of a read, that of the memory here that of the peer's. kDataMismatch, naming a range of at most
  /// 4096 bytes, if it is not. Whoever writes to either side meanwhile makes it fail.
  bool verify = false;
};

/// A list of spans that was checked, merged and kept, to be posted any number of times.
class P2P_API PreparedTransfer {
 public:
  PreparedTransfer() = default;
  explicit PreparedTransfer(std::shared_ptr<engine::PreparedList> list);

  bool valid() const { return list_ != nullptr; }

  /// Starts the transfer; the cost does not depend on the number of descriptors. One post at a time or
  /// several at once are both fine.
  Transfer post(const PostOptions& options = {}) const;

  std::uint64_t bytes() const;

  /// Contiguous segments left after neighbours on both sides were merged; what lies in rows of equal blocks
  /// counts once where the transport takes it as such. Before the peer has answered about its region, the
  /// number of spans that were given.
  std::size_t segments() const;

 private:
  std::shared_ptr<engine::PreparedList> list_;
};

}  // namespace p2p
