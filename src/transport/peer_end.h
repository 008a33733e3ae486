// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "transport/batch.h"

namespace p2p {

/// Watches the twin of a channel that has ended here while the twin may still access this side's memory.
class PeerEnd {
 public:
  PeerEnd() = default;
  virtual ~PeerEnd() = default;
  PeerEnd(const PeerEnd&) = delete;
  PeerEnd& operator=(const PeerEnd&) = delete;

  /// Readable when `over` may have changed.
  virtual int fd() const = 0;

  /// The twin has closed, or its process has ended. Never blocks.
  virtual bool over() const = 0;
};

/// Channels whose twin accesses this side's memory by itself, so that closing this end does not stop it.
class LeavesPeer {
 public:
  struct Left {
    std::unique_ptr<PeerEnd> end;  ///< watches the twin; null if it has closed already
    std::vector<BatchId> held;     ///< in flight: the twin may use their local memory until then
  };

  virtual ~LeavesPeer() = default;

  /// Closes, as the destructor does. Nothing but the destructor is called after it.
  virtual Left leave() = 0;
};

}  // namespace p2p
