// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "device/staging.h"
#include "transport/batch.h"
#include "transport/tcp/staging/staged_memory.h"
#include "transport/tcp/stream/sender.h"

namespace p2p::tcp {

/// What leaves a device by one stream, my writes and the answers to a peer's reads: it is packed into a
/// pinned slot, while others are on the wire, and goes to the sender from there. Also counts my writes that
/// take up the peer's slots. Belongs to a channel, on its thread; what ended goes to the vector given at
/// construction.
class DeviceDepartures {
 public:
  DeviceDepartures(std::shared_ptr<device::Staging> staging, Sender& sender,
                   std::vector<Completion>& completions)
      : staging_(std::move(staging)), sender_(sender), completions_(completions) {}
  DeviceDepartures(const DeviceDepartures&) = delete;
  DeviceDepartures& operator=(const DeviceDepartures&) = delete;

  /// Room for a write; of mine to a device over there, or from one here.
  bool takes_write(const Batch& batch, bool from_device) const;

  /// Notes a write from host memory to a device over there, which takes one of the peer's slots.
  void note_write(const Batch& batch) { to_device_.push_back(batch.id); }

  /// Takes a write from device memory, for which there is room.
  void post_write(const Batch& batch);

  /// Answers a peer's read of device memory.
  void respond(std::uint64_t number, StagedMemory memory);

  /// The peer's reads that wait for a slot or a copy.
  std::size_t responses() const;

  /// Hands what is packed to the sender. True if anything moved.
  bool progress();

  /// Of each completion that is about to be told: the slot it left from is free again.
  void completed(BatchId id);

  bool busy() const { return !outgoing_.empty(); }

  /// False if the batch is not here; else it ends.
  bool abandon(BatchId id);

  /// The staging was closed: nothing is copied any more. Forgets the peer's reads.
  void stop();

  /// Ends all with `why`, after `stop`. The sender has failed before.
  void fail(const Error& why);

 private:
  using Slot = device::Staging::Slot;
  enum class Kind : std::uint8_t { kWrite, kResponse };
  struct Outgoing {
    Kind kind = Kind::kWrite;
    Batch batch;
    std::uint64_t number = 0;
    StagedMemory memory;
    Slot* slot = nullptr;
    std::vector<AccessGuard> accesses;  // while it is packed
    bool packing = false;
    bool abandoned = false;
  };
  struct Sent {
    BatchId id{};
    Slot* slot = nullptr;
  };

  void take(Outgoing outgoing);
  bool advance(Outgoing& outgoing);
  bool begin(Outgoing& outgoing);
  bool hand_over(Outgoing& outgoing);
  void end(Outgoing& outgoing, Status outcome);

  std::shared_ptr<device::Staging> staging_;  // frames that are sent keep it, too
  Sender& sender_;
  std::vector<Completion>& completions_;
  std::deque<Outgoing> outgoing_;
  std::vector<BatchId> to_device_;  // my writes that occupy the peer's slots
  std::vector<Sent> sent_;
};

}  // namespace p2p::tcp
