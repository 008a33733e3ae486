// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "device/copier.h"
#include "drivers/cuda/memory.h"
#include "p2p/result.h"

namespace p2p::device {

/// A run of bytes that is staged; `device` -1 is host memory.
struct StagedPiece {
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  int device = -1;
};

/// Pinned slots through which lists of device memory (and host memory among it) go to the host and back. Each
/// slot carries one list at a time, and any number of slots is under way at once. Made at the first use;
/// later it allocates only for a device that it sees for the first time. Used by one thread at a time.
class Staging {
 public:
  struct Limits {
    std::size_t slot_bytes = 0;
    std::size_t slots = 0;
    std::size_t pieces = 0;  ///< of one list
    kernels::Grid grid;
    std::uint64_t bulk_bytes = 0;  ///< see Copier::Limits
  };

  class Slot {
   public:
    std::byte* data() const { return data_; }

    /// How the last list ended, once finished.
    const Status& status() const { return status_; }

   private:
    friend class Staging;
    struct Part {
      Copier* copier;
      Copier::List* list;
    };
    std::byte* data_ = nullptr;
    std::vector<Part> parts_;  // one a device
    Status status_;
  };

  static Result<std::unique_ptr<Staging>> open(const Limits& limits);

  const Limits& limits() const { return limits_; }

  /// Null while all are in use.
  Slot* take();
  void give_back(Slot& slot) { free_.push_back(&slot); }

  /// Starts to copy the pieces into the slot, back to back.
  void pack(Slot& slot, std::span<const StagedPiece> pieces) { start(slot, pieces, true); }

  /// Starts to copy what the slot holds to the pieces.
  void unpack(Slot& slot, std::span<const StagedPiece> pieces) { start(slot, pieces, false); }

  /// Never blocks; true also when nothing was started. The bytes are visible to whoever learns of it.
  bool finished(Slot& slot);

 private:
  explicit Staging(const Limits& limits) : limits_(limits) {}
  void start(Slot& slot, std::span<const StagedPiece> pieces, bool pack);
  Result<Slot::Part> part_for(int device, Slot& slot);

  const Limits limits_;
  cuda::HostBuffer memory_;
  std::vector<Slot> slots_;
  std::vector<Slot*> free_;
  std::map<int, std::unique_ptr<Copier>> copiers_;
};

}  // namespace p2p::device
