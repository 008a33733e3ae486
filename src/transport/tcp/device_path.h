// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "device/staging.h"
#include "transport/batch.h"
#include "transport/registration.h"
#include "transport/tcp/frame.h"
#include "transport/tcp/sender.h"

namespace p2p::tcp {

/// Memory of a batch or of a peer's ranges, in order, and what keeps it registered.
struct StagedMemory {
  std::vector<device::StagedPiece> pieces;
  std::vector<std::shared_ptr<Registration>> guards;  ///< of what a peer named
  std::uint64_t bytes = 0;

  void add(std::byte* data, std::uint64_t size, MemoryPlace place);
};

/// The local memory of `batch`.
StagedMemory staged_memory(const Batch& batch);

/// True if the batch's remote memory is on a device.
bool ends_on_device(const Batch& batch);

/// Device memory of one stream: bytes go through pinned slots, so that the rest of the stream sees host
/// memory only. What is copied while other slots are on the wire. Belongs to a channel, on its thread; what
/// ended goes to the vector given at construction.
class DevicePath {
 public:
  using Slot = device::Staging::Slot;

  /// Lists of copies that one stream has under way at most.
  static std::size_t lists();

  DevicePath(std::shared_ptr<device::StagingPool> pool, Sender& sender, std::vector<Completion>& completions);
  ~DevicePath();
  DevicePath(const DevicePath&) = delete;
  DevicePath& operator=(const DevicePath&) = delete;

  /// Room for a write; of mine to a device over there, or from one here.
  bool takes_write(const Batch& batch, bool from_device) const;

  /// Notes a write from host memory to a device over there, which takes one of the peer's slots.
  void note_write(const Batch& batch) { to_device_.push_back(batch.id); }

  /// Takes a write from device memory; false: full.
  bool post_write(const Batch& batch, StagedMemory memory);

  /// A slot for the answer to a read into device memory, or none.
  Result<Slot*> slot_for_answer(std::uint64_t bytes);

  /// Answers a peer's read of device memory.
  void respond(std::uint64_t number, StagedMemory memory);

  /// The peer's reads that wait for a slot or a copy.
  std::size_t responses() const;

  /// A slot for a peer's write to device memory; the reason if it cannot be had.
  Result<Slot*> slot_for_arrival(std::uint64_t bytes);
  void drop_arrival(Slot& slot) { staging_->give_back(slot); }

  /// The payload of the peer's next write is here: in the slot, or (null) where it belongs. Its end is told
  /// by `next_landed`, in the order of the writes.
  void landed(Slot* slot, StagedMemory memory, Status outcome, std::uint64_t bytes);
  std::size_t landing() const { return landed_.size(); }

  struct Landed {
    Status outcome;
    std::uint64_t bytes = 0;
  };
  std::optional<Landed> next_landed();

  /// The answer to a read is in its slot. kNotFound if its memory was freed: then it stays there.
  Status unpack_answer(Slot& slot, const Batch& batch);
  bool answer_unpacked(Slot& slot) { return staging_->finished(slot); }
  void drop_answer(Slot& slot) { staging_->give_back(slot); }

  /// Hands what is packed to the sender and takes back what it has sent. True if anything moved.
  bool progress();

  /// Of each completion that is about to be told.
  void completed(BatchId id);

  bool busy() const { return !outgoing_.empty() || !landed_.empty(); }

  /// False if the batch is not here; else it ends.
  bool abandon(BatchId id);

  /// Waits for copies under way and ends all with `why`. The sender has failed before.
  void fail(const Error& why);

 private:
  enum class Kind : std::uint8_t { kWrite, kResponse };
  struct Outgoing {
    Kind kind = Kind::kWrite;
    Batch batch;
    std::uint64_t number = 0;
    StagedMemory memory;
    Slot* slot = nullptr;
    bool packing = false;
    bool abandoned = false;
  };
  struct Arrived {
    Slot* slot = nullptr;
    std::vector<std::shared_ptr<Registration>> guards;
    Status outcome;
    std::uint64_t bytes = 0;
  };

  bool advance(Outgoing& outgoing);
  bool begin(Outgoing& outgoing);
  bool hand_over(Outgoing& outgoing);
  void end(Outgoing& outgoing, Status outcome);

  const std::shared_ptr<device::StagingPool> pool_;
  Sender& sender_;
  std::vector<Completion>& completions_;
  std::shared_ptr<device::Staging> staging_;  // until `fail`; frames that are sent keep it, too
  std::deque<Outgoing> outgoing_;
  std::deque<Arrived> landed_;
  std::vector<BatchId> to_device_;  // my writes that occupy the peer's slots

  struct Sent {
    BatchId id{};
    Slot* slot = nullptr;
  };
  std::vector<Sent> sent_;
};

}  // namespace p2p::tcp
