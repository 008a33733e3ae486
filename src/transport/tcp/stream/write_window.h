// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "transport/batch.h"

namespace p2p::tcp {

/// The writes of one side of a stream, from their post to the peer's word, and how much more there is room
/// for. Frames number them in the order in which they are started. What ended goes to the vector given at
/// construction.
class WriteWindow {
 public:
  explicit WriteWindow(std::vector<Completion>& completions) : completions_(completions) {}

  /// Room for a write of so many bytes.
  bool takes(std::uint64_t bytes) const;

  /// The kernel's buffer holds what the path takes: what waits for that is left to other streams.
  void set_long_path() { most_unsent_ = 0; }

  /// A write was queued. Until it is started it may be withdrawn, and ends with that.
  void queue(std::uint64_t bytes);
  void withdraw(BatchId id, std::uint64_t bytes);

  /// The next write begins to be sent; answers its number.
  std::uint64_t start(BatchId id, std::uint64_t bytes);

  /// So many bytes of the write are out; with `whole` all of it.
  void sent(std::uint64_t bytes) { bytes_unsent_ -= bytes; }
  void sent_whole(std::uint64_t number) { sent_ = number; }

  /// The kernel reads the write's memory until it has let go of so many zero-copy sends.
  void hold(std::uint64_t number, std::uint64_t sends) { writes_[number - first_].held_by = sends; }

  /// The peer has dealt with all writes up to `number`; kProtocol if that cannot be.
  Status acknowledged(std::uint64_t number);

  /// Its memory here is bad: zeros go in its place.
  void spoiled(std::uint64_t number, Error why) {
    writes_[number - first_].outcome = tl::unexpected(std::move(why));
  }

  /// The peer did not land that one.
  Status refused(std::uint64_t number, const Error& why);

  /// Ends what was acknowledged, now that the kernel has let go of so many zero-copy sends.
  void release(std::uint64_t sends);

  /// True for a write that was started and has not ended.
  bool has(BatchId id) const;

  /// Ends all that were started.
  void fail(const Error& why);

 private:
  struct Write {
    BatchId id{};
    std::uint64_t bytes = 0;
    std::uint64_t held_by = 0;  // the last zero-copy send of it
    Status outcome;
  };

  // A channel that has this much waiting for its socket leaves the rest to others.
  static constexpr std::uint64_t kUnsentBytes = 2U << 20;

  std::vector<Completion>& completions_;
  std::uint64_t most_unsent_ = kUnsentBytes;
  std::deque<Write> writes_;        // started; the front has number first_
  std::deque<Write> acknowledged_;  // but the kernel still holds their memory
  std::uint64_t first_ = 1;
  std::uint64_t sent_ = 0;             // the last write that is out altogether
  std::uint64_t queued_ = 0;           // not started
  std::uint64_t bytes_in_flight_ = 0;  // of all
  std::uint64_t bytes_unsent_ = 0;
};

}  // namespace p2p::tcp
