// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "device/landing_plan.h"
#include "device/unpacker.h"
#include "drivers/nccl_net/window.h"
#include "transport/nccl_net/memory.h"
#include "transport/nccl_net/protocol.h"

namespace p2p::nccl_net {

/// What a channel decides for its Incoming.
struct IncomingHandler {
  /// Where the next chunk belongs: pieces that add up to its size. After an error its bytes are dropped.
  std::function<Result<Places>(const Chunk&)> resolve;

  /// It has come, or been dropped, and nothing of it is touched any more. kNotFound: a region was revoked
  /// meanwhile, or its memory freed.
  std::function<void(const Chunk&, const Status&)> landed;
};

/// The receiving half of a channel: posts a receive for each announced chunk, in their order, and lands the
/// bytes. With an UNPACK comm they go from the pool straight to their blocks, on a GPU by one launch for all
/// receives of all its channels that have come meanwhile; otherwise contiguous targets are received in place
/// and scattered ones by way of the staging. Owned by the channel.
class Incoming {
 public:
  using Proof = std::array<std::byte, 32>;

  static Result<Incoming> open(RecvComm comm, const Flow& flow, std::shared_ptr<device::Unpacker> unpacker,
                               IncomingHandler handler);
  Incoming(Incoming&&) = default;
  Incoming& operator=(Incoming&&) = delete;

  /// After this no memory is touched and no region is held.
  ~Incoming();

  /// What the peer sent with send_proof, once it has come.
  Result<std::optional<Proof>> poll_proof();

  /// kProtocol for a chunk out of sequence or one too many.
  Status announce(Chunk chunk);

  Result<bool> progress();

  /// Chunks whose bytes have come so far.
  std::uint64_t arrived() const { return arrived_; }

  /// Bytes of the chunk that is to come next; 0: no receive is posted for one.
  std::uint64_t awaited() const { return posted_.empty() ? 0 : posted_.front().chunk.size; }

  bool idle() const { return waiting_.empty() && posted_.empty() && landings_.empty(); }
  void sweep() { handles_->sweep(); }

 private:
  struct Posted {
    Chunk chunk;
    Places places;
    std::byte* staged = nullptr;        ///< null: received in place
    std::vector<AccessGuard> accesses;  ///< while it is received in place
    bool dropped = false;
  };

  /// A chunk whose bytes have come, until they are in place.
  struct Landed {
    Chunk chunk;
    std::vector<AccessGuard> accesses;
    Status status;
    std::byte* staged = nullptr;
  };
  struct Landing {
    Landed landed;
    std::shared_ptr<device::Unpacker::Receive> receive;  ///< null: the bytes are in place
  };

  Incoming(RecvComm comm, const Flow& flow, std::shared_ptr<device::Unpacker> unpacker,
           IncomingHandler handler, SlotMemory staging);
  Result<bool> post_next();
  const MemoryHandle* in_place(const std::vector<LocalRange>& pieces, const Chunk& chunk);
  Result<bool> take_arrivals();
  Status read_arrival(const Arrival& arrival, std::uint64_t size);
  Result<Landing> take(const Arrival& arrival, Posted& posted);
  Landed land(Posted& posted);
  Status copy_proof(const std::byte* source, Proof& proof);
  Result<bool> finish_landings();
  Status finish(Landed& landed);

  IncomingHandler handler_;
  Flow flow_;
  std::shared_ptr<device::Unpacker> unpacker_;
  std::optional<ReceiveWindow> window_;
  std::optional<HandleCache> handles_;
  std::optional<SlotMemory> staging_;
  std::deque<Chunk> waiting_;
  std::optional<Posted> resolved_;  // the first that waits, where the plugin took no receive for it yet
  std::deque<Posted> posted_;
  std::deque<Landing> landings_;
  device::SpareReceives spare_receives_;
  std::uint64_t announced_ = 0;
  std::uint64_t arrived_ = 0;
  std::byte* proof_ = nullptr;  // where it is to come

  device::LandingPlan plan_;  // of the receive that has come last
};

}  // namespace p2p::nccl_net
