// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "device/staging.h"
#include "transport/tcp/staging/staged_memory.h"

namespace p2p::tcp {

/// A peer's writes to device memory of one stream: their bytes land in a pinned slot and are unpacked from
/// there. Their ends are told in the order of the writes, so that those to host memory which come behind one
/// wait here, too. Belongs to a channel, on its thread.
class DeviceArrivals {
 public:
  explicit DeviceArrivals(std::shared_ptr<device::Staging> staging) : staging_(std::move(staging)) {}
  DeviceArrivals(const DeviceArrivals&) = delete;
  DeviceArrivals& operator=(const DeviceArrivals&) = delete;

  /// Where the payload of a write goes that is to end up in `memory`; the reason if it cannot be had.
  /// `landed` is the next call.
  Result<std::byte*> begin(StagedMemory memory);

  /// The payload of the peer's next write is here: in the slot that `begin` gave, or where it belongs.
  void landed(Status outcome, std::uint64_t bytes);

  /// Writes that have landed and not ended.
  std::size_t size() const { return landed_.size(); }

  /// True while `landed` has to be told of every write.
  bool busy() const { return coming_ || !landed_.empty(); }

  struct Ended {
    Status outcome;
    std::uint64_t bytes = 0;
  };

  /// The next write that ended.
  std::optional<Ended> next_ended();

  /// Lets go of all; the staging was closed before.
  void clear();

 private:
  using Slot = device::Staging::Slot;
  struct Coming {
    Slot* slot = nullptr;
    StagedMemory memory;
  };
  struct Landed {
    Slot* slot = nullptr;               // null: there was nothing to unpack
    std::vector<AccessGuard> accesses;  // while it is unpacked
    Status outcome;
    std::uint64_t bytes = 0;
  };

  std::shared_ptr<device::Staging> staging_;
  std::optional<Coming> coming_;
  std::deque<Landed> landed_;
};

}  // namespace p2p::tcp
