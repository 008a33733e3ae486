// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "engine/transfer.h"

namespace p2p::engine {

class Submission;

/// What came of a piece of work that was done under locks, to be told once none is held.
class Deferred {
 public:
  /// All of the submission is done.
  void end(std::shared_ptr<Submission> submission) { ended_.push_back(std::move(submission)); }
  void finish(std::shared_ptr<TransferState> state, Status status = {}) {
    finished_.emplace_back(std::move(state), std::move(status));
  }
  void call(std::function<void()> task) { tasks_.push_back(std::move(task)); }

  /// Takes over what `other` has to tell.
  void absorb(Deferred& other);

  /// Tells it. Hold no lock.
  void run();

 private:
  std::vector<std::shared_ptr<Submission>> ended_;
  std::vector<std::pair<std::shared_ptr<TransferState>, Status>> finished_;
  std::vector<std::function<void()>> tasks_;
};

}  // namespace p2p::engine
