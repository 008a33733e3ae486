// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <thread>

namespace p2p::testing {

/// Whether `holds` comes to hold within 20 seconds, far more than what is waited for takes.
template <class Condition>
bool eventually(Condition&& holds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace p2p::testing
