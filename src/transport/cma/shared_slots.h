// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/unique_fd.h"
#include "p2p/result.h"
#include "transport/batch.h"
#include "transport/served_copies.h"

namespace p2p::cma {

/// Slots in a file in memory that two processes have, some for each, which may not reach into each other's
/// memory, as in two PID namespaces. A side puts a batch into a slot of its own and asks the peer, which
/// copies between it and memory of its own. The system copies, so that bad memory is an error. The peer may
/// write anything there at any time.
class SharedSlots {
 public:
  static constexpr std::size_t kSlotBytes = std::size_t{1} << 20;
  static constexpr std::size_t kSlots = 4;                    ///< one is filled, and others are with the peer
  static constexpr std::size_t kBytes = kSlots * kSlotBytes;  ///< of one side

  /// None.
  SharedSlots() = default;

  /// In `file`, from byte `begin` on: those of the side that is `first`, then the other's.
  SharedSlots(UniqueFd file, std::size_t begin, bool first);

  explicit operator bool() const { return static_cast<bool>(file_); }
  const UniqueFd& file() const { return file_; }

  /// Where a slot of this side begins among them; -1: all are in use.
  std::int64_t take();
  void give_back(std::int64_t slot) { used_[static_cast<std::size_t>(slot) / kSlotBytes] = false; }

  /// Moves the batch's local bytes into the slot, or out of it; `staged`: they lie back to back from there
  /// on, in place of where the batch says. An error names memory that turned out bad.
  Status move(std::int64_t slot, const Batch& batch, std::byte* staged, bool to_slot);

  /// Copies what the peer asks for between its slots, where the pieces lie back to back, and memory here. If
  /// they do not it sets `breach`.
  Status serve(const ServedCopy& asked, std::optional<Error>& breach);

 private:
  Status move_runs(std::int64_t at, bool to_file);

  UniqueFd file_;
  std::int64_t mine_ = 0;
  std::int64_t theirs_ = 0;
  std::array<bool, kSlots> used_{};
  std::vector<iovec> runs_;  // scratch
};

}  // namespace p2p::cma
