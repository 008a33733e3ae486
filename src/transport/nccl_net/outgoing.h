// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "device/job.h"
#include "drivers/nccl_net/window.h"
#include "transport/nccl_net/memory.h"
#include "transport/nccl_net/protocol.h"

namespace p2p::nccl_net {

/// A write of mine, or the answer to a peer's read: bytes that leave by the send comm.
struct OutgoingBatch {
  std::uint64_t id = 0;
  bool response = false;
  std::vector<LocalRange> pieces;
  std::vector<std::shared_ptr<Registration>> owners;  ///< of a response: keeps the regions of its pieces
  std::vector<RegionRange> targets;                   ///< of a write, piece by piece
  std::uint64_t left = 0;                             ///< bytes not yet cut into chunks

  // State of Outgoing.
  std::size_t next = 0;         ///< piece
  std::uint64_t offset = 0;     ///< into it
  std::size_t in_flight = 0;    ///< chunks that were announced and have not left
  bool posted_any = false;      ///< the peer knows of it
  bool closed = false;          ///< nothing more of it will be posted
  std::optional<Error> failed;  ///< a region of it was revoked, or its memory freed or bad

  bool quiet() const { return closed && in_flight == 0; }
};

/// The sending half of a channel: cuts batches into chunks, announces them and posts each, in one order.
/// Announcements run ahead of the posts, so that the peer has its receives ready however slow the session is.
/// Contiguous memory goes as it is, scattered blocks are gathered: by the processor, or of device memory by a
/// kernel, and then chunks wait for it in their order. Owned by the channel.
class Outgoing {
 public:
  using Announce = std::function<void(const Message&)>;

  static Result<Outgoing> open(SendComm comm, const Flow& flow, Announce announce);
  Outgoing(Outgoing&&) = default;
  Outgoing& operator=(Outgoing&&) = delete;

  /// After this no memory is touched and no region is held.
  ~Outgoing();

  /// Sends raw bytes before any batch, unannounced; false: try again.
  Result<bool> send_proof(ByteView proof);

  void add(std::shared_ptr<OutgoingBatch> batch) { queue_.push_back(std::move(batch)); }

  /// Cuts nothing more of it.
  void close(OutgoingBatch& batch);

  /// True if anything moved.
  Result<bool> progress();

  bool idle() const { return queue_.empty() && waiting_.empty() && window_->empty(); }
  void sweep() { handles_->sweep(); }

 private:
  struct Cut {
    std::vector<LocalRange> pieces;
    Chunk chunk;
  };
  /// A chunk that was announced, until its send has ended.
  struct Sending {
    std::shared_ptr<OutgoingBatch> batch;
    std::vector<AccessGuard> accesses;  ///< the batch holds what they guard
    std::vector<LocalRange> pieces;
    std::byte* slot = nullptr;  ///< of the staging, where it is gathered
    std::uint64_t size = 0;
    const std::byte* data = nullptr;  ///< from where it goes, once that is decided
    const MemoryHandle* handle = nullptr;
    device::Job gather;
  };

  Outgoing(SendComm comm, const Flow& flow, Announce announce, SlotMemory staging);
  void cut_next();
  Cut cut(const OutgoingBatch& batch) const;
  static void advance(OutgoingBatch& batch, std::uint64_t bytes);
  static bool begin_accesses(const Cut& cut, Sending& sending);
  Result<bool> place_next();
  Result<bool> place(Sending& sending);
  Result<bool> post_next();

  Announce announce_;
  std::size_t chunk_bytes_;
  std::unique_ptr<device::Copier> copier_;  // of device memory
  std::optional<SendWindow> window_;
  std::optional<HandleCache> handles_;
  std::optional<SlotMemory> staging_;
  std::deque<std::shared_ptr<OutgoingBatch>> queue_;
  std::deque<Sending> waiting_;  // announced; the first `ready_` have a place, perhaps still being gathered
  std::deque<Sending> sent_;
  std::size_t ready_ = 0;
  std::uint64_t sequence_ = 0;
};

}  // namespace p2p::nccl_net
