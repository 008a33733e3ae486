// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/deferred.h"

#include "engine/submission.h"

namespace p2p::engine {

void Deferred::run() {
  for (const auto& submission : std::exchange(ended_, {})) submission->end();
  for (const auto& task : std::exchange(tasks_, {})) task();
}

}  // namespace p2p::engine
