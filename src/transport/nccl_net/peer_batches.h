// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "transport/nccl_net/memory.h"
#include "transport/nccl_net/message_sender.h"
#include "transport/nccl_net/outgoing.h"
#include "transport/nccl_net/protocol.h"
#include "transport/peer_access.h"

namespace p2p::nccl_net {

/// The peer's batches that are under way: what it writes to my memory and reads from it. All of it came from
/// outside and is checked: every range is looked up in the table of registrations. Part of its channel.
class PeerBatches {
 public:
  PeerBatches(PeerAccess regions, MessageSender& messages)
      : regions_(std::move(regions)), messages_(messages) {}

  /// A part of a write is on its way. kProtocol if it is not due.
  Status announced(const Chunk& chunk);

  /// Where it belongs. An error is the write's.
  Result<Places> resolve(const Chunk& chunk);
  void landed(const Chunk& chunk, const Status& status);

  /// Answers a read.
  Status take(const ReadRequest& read, Outgoing& outgoing);
  Status take(const Cancel& cancel, Outgoing& outgoing);

  /// Ends the reads of which all has left.
  void end_reads();

  /// Lets go of all.
  void clear();

 private:
  struct Write {
    std::size_t outstanding = 0;
    bool closed = false;
    Status status;
  };

  Result<Places> find(Operation operation, const std::vector<RegionRange>& ranges) const;
  void end_write(std::uint64_t number);

  const PeerAccess regions_;
  MessageSender& messages_;
  std::map<std::uint64_t, Write> writes_;
  std::map<std::uint64_t, std::shared_ptr<OutgoingBatch>> reads_;
};

}  // namespace p2p::nccl_net
