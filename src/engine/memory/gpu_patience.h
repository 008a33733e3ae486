// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <thread>

namespace p2p::engine {

/// Between two looks at a GPU, which tells nobody that it is through, and since when it has been waited for.
/// Most are through sooner than a thread that sleeps wakes: 70 us, however few are asked for.
inline void wait_for_gpu(std::chrono::steady_clock::time_point begun) {
  using namespace std::chrono_literals;
  if (std::chrono::steady_clock::now() - begun < 200us) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(20us);
  }
}

/// For a GPU that neither ends nor fails.
inline constexpr std::chrono::seconds kGpuLimit{30};

}  // namespace p2p::engine
