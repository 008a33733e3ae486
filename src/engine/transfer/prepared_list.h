// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "engine/request/segment_list.h"
#include "engine/transfer/transfers.h"

namespace p2p::engine {

/// A list kept for many posts. Built when it is made, or once the peer's message about its regions is there;
/// until then it keeps the spans. Thread-safe.
class PreparedList {
 public:
  /// Fails if the spans are wrong as far as can be told now.
  static Result<std::shared_ptr<PreparedList>> make(std::shared_ptr<Transfers> transfers, Operation operation,
                                                    std::span<const LocalSpan> local,
                                                    std::span<const RemoteSpan> remote,
                                                    std::span<const StridedPair> strided = {});

  /// Tries to, unless it is built already.
  void build();

  std::shared_ptr<TransferState> post(const PostOptions& options);
  std::uint64_t bytes() const { return bytes_; }

  /// Pieces after merging; the number of spans while not built.
  std::size_t segments() const;

 private:
  Status try_build() P2P_REQUIRES(mutex_);
  PreparedList(std::shared_ptr<Transfers> transfers, Operation operation)
      : transfers_(std::move(transfers)), operation_(operation) {}

  const std::shared_ptr<Transfers> transfers_;
  const Operation operation_;
  std::uint64_t bytes_ = 0;
  mutable Mutex mutex_;
  std::shared_ptr<const SegmentList> list_ P2P_GUARDED_BY(mutex_);
  std::vector<LocalSpan> local_ P2P_GUARDED_BY(mutex_);
  std::vector<RemoteSpan> remote_ P2P_GUARDED_BY(mutex_);
  std::vector<StridedPair> strided_ P2P_GUARDED_BY(mutex_);
};

}  // namespace p2p::engine
