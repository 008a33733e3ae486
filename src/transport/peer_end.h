// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "transport/batch.h"

namespace p2p {

/// What is left of a channel that has ended here while its twin may still be at work on this side's memory.
class PeerEnd {
 public:
  PeerEnd() = default;
  virtual ~PeerEnd() = default;
  PeerEnd(const PeerEnd&) = delete;
  PeerEnd& operator=(const PeerEnd&) = delete;

  /// Readable once `over` may answer otherwise.
  virtual int fd() const = 0;

  /// The twin said that it is through, or its process is at its end. Never blocks.
  virtual bool over() const = 0;
};

/// For channels whose peer's twin moves bytes to and from this side's memory
/// by itself, so that the end of this one alone proves nothing.
class LeavesPeer {
 public:
  struct Left {
    std::unique_ptr<PeerEnd> end;  ///< tells when the twin is through as well; null if it is
    std::vector<BatchId> held;     ///< under way, and the twin may use their local memory until then
  };

  virtual ~LeavesPeer() = default;

  /// Ends the channel's work, as its destructor does. Nothing but the destructor is called after it.
  virtual Left leave() = 0;
};

}  // namespace p2p
