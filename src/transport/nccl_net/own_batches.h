// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "transport/batch.h"
#include "transport/nccl_net/memory.h"
#include "transport/nccl_net/message_sender.h"
#include "transport/nccl_net/outgoing.h"
#include "transport/nccl_net/protocol.h"

namespace p2p::nccl_net {

/// The batches of this side that are under way: writes until the peer has them all and no byte of them is in
/// flight, reads until the last chunk that was announced has landed. What the peer says of them is checked.
/// Part of its channel.
class OwnBatches {
 public:
  OwnBatches(std::uint64_t most_bytes, MessageSender& messages)
      : most_bytes_(most_bytes), messages_(messages) {}

  /// False: enough is under way.
  bool post(const Batch& batch, Outgoing& outgoing);
  void abandon(BatchId id, Outgoing& outgoing);

  /// A part of the answer to a read is on its way. kProtocol if it is not due.
  Status announced(const Chunk& chunk);

  /// Where it belongs.
  Result<Places> resolve(const Chunk& chunk);
  void landed(const Chunk& chunk, const Status& status);

  /// The peer is through with one. kProtocol if that cannot be.
  Status take(const Done& done);

  /// Completes what has ended on both sides. True if anything did.
  bool end();

  /// Nothing is under way.
  bool empty() const { return writes_.empty() && reads_.empty(); }

  /// Completes everything.
  void fail(const Error& why);

  /// Appends the completions; true if there were any.
  bool take(std::vector<Completion>& completions);
  bool has_completions() const { return !completions_.empty(); }

 private:
  struct Write {
    BatchId id{};
    std::uint64_t bytes = 0;
    std::shared_ptr<OutgoingBatch> out;
    bool cancel_due = false;  ///< to be told to the peer behind the last chunk that it hears of
    bool cancelled = false;   ///< told, or the peer need not be
    std::optional<Status> done;
  };

  struct Read {
    BatchId id{};
    std::vector<LocalRange> pieces;
    std::uint64_t bytes = 0;
    std::size_t next = 0;      // piece that the next chunk begins in
    std::uint64_t offset = 0;  // into it
    std::uint64_t announced = 0;
    std::size_t outstanding = 0;
    bool abandoned = false;
    std::optional<Error> ended;   ///< by the peer
    std::optional<Error> failed;  ///< to land here; the rest comes all the same
  };

  void end_writes();
  void end_reads();
  static Places slice(Read& read, std::uint64_t bytes);

  const std::uint64_t most_bytes_;
  MessageSender& messages_;
  // By numbers that are never used again, unlike BatchIds: the peer may still look back on an earlier batch.
  std::uint64_t last_number_ = 0;
  std::uint64_t bytes_under_way_ = 0;
  std::map<std::uint64_t, Write> writes_;
  std::map<std::uint64_t, Read> reads_;
  std::vector<Completion> completions_;
};

}  // namespace p2p::nccl_net
