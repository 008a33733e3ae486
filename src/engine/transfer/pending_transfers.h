// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "engine/memory/region.h"
#include "engine/request/stream_dependency.h"
#include "engine/request/strided.h"
#include "engine/request/transfer.h"
#include "p2p/transfer.h"
#include "transport/batch.h"

namespace p2p::engine {

/// A transfer as it was asked for. Its local regions are in use from now on.
struct PendingTransfer {
  Operation operation;
  std::vector<LocalSpan> local;
  std::vector<RemoteSpan> remote;
  std::vector<StridedPair> strided;  ///< as of build_list
  PostOptions options;
  std::shared_ptr<const StreamDependency> dependency;
  std::shared_ptr<TransferState> state;
  HeldRegions held{};
};

/// The transfers of one connection that wait for the peer's message about their regions. Each is taken out
/// once: by whoever starts it, cancels it or ends them all. Thread-safe.
class PendingTransfers {
 public:
  /// False once closed.
  bool add(const std::shared_ptr<PendingTransfer>& transfer) {
    MutexLock lock(mutex_);
    if (closed_) return false;
    return pending_.emplace(transfer->state.get(), transfer).second;
  }

  /// Null: somebody else has it.
  std::shared_ptr<PendingTransfer> take(const TransferState& state) {
    MutexLock lock(mutex_);
    auto node = pending_.extract(&state);
    return node ? std::move(node.mapped()) : nullptr;
  }

  /// Takes no more, and gives all.
  auto close() {
    MutexLock lock(mutex_);
    closed_ = true;
    return std::exchange(pending_, {});
  }

 private:
  Mutex mutex_;
  bool closed_ P2P_GUARDED_BY(mutex_) = false;
  std::unordered_map<const TransferState*, std::shared_ptr<PendingTransfer>> pending_ P2P_GUARDED_BY(mutex_);
};

}  // namespace p2p::engine
