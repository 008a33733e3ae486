// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <thread>

#include "support/bounds.h"

namespace p2p::testing {

/// Whether `holds` comes to hold within the bound of what must succeed.
template <class Condition>
bool eventually(Condition&& holds) {
  const auto deadline = std::chrono::steady_clock::now() + kLimit;
  while (!holds()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace p2p::testing
