// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "engine/request/transfer.h"

namespace p2p::engine {

class Request;

/// What came of an item of work that was done under locks, to be told once none is held.
class PostUnlockActions {
 public:
  /// All of the request is done.
  void end(std::shared_ptr<Request> request) { ended_.push_back(std::move(request)); }
  void finish(std::shared_ptr<TransferState> state, Status status = {}) {
    finished_.emplace_back(std::move(state), std::move(status));
  }
  void call(std::function<void()> task) { tasks_.push_back(std::move(task)); }

  /// Takes over what `other` has to tell.
  void absorb(PostUnlockActions& other);

  /// Tells it. Hold no lock.
  void run();

 private:
  std::vector<std::shared_ptr<Request>> ended_;
  std::vector<std::pair<std::shared_ptr<TransferState>, Status>> finished_;
  std::vector<std::function<void()>> tasks_;
};

}  // namespace p2p::engine
