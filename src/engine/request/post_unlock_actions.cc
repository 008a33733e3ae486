// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/request/post_unlock_actions.h"

#include <algorithm>
#include <iterator>

#include "base/memory_guard.h"
#include "engine/request/request.h"

namespace p2p::engine {
namespace {

template <class T>
void move_all(std::vector<T>& from, std::vector<T>& to) {
  if (from.empty()) return;
  std::move(from.begin(), from.end(), std::back_inserter(to));
  from.clear();
}

}  // namespace

void PostUnlockActions::absorb(PostUnlockActions& other) {
  move_all(other.ended_, ended_);
  move_all(other.finished_, finished_);
  move_all(other.tasks_, tasks_);
}

void PostUnlockActions::run() {
  for (const auto& request : std::exchange(ended_, {})) {
    guard_memory("the end of a transfer", [&] { request->end(); });
  }
  for (auto& [state, status] : std::exchange(finished_, {})) {
    guard_memory("the end of a transfer", [&] { state->finish(std::move(status)); });
  }
  for (const auto& task : std::exchange(tasks_, {})) guard_memory("a task of a connection", task);
}

}  // namespace p2p::engine
