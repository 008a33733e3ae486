// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <thread>

#include "base/mutex.h"
#include "base/relax.h"

namespace p2p {

/// Locks a mutex that is held for moments only, without sleeping: to be woken would take longer than the
/// wait, and the holder would have to do it.
inline void lock_polling(Mutex& mutex) P2P_ACQUIRE(mutex) {
  constexpr int kTries = 1000;  // some microseconds; then the holder has probably lost its CPU
  for (int tries = 0; !mutex.try_lock(); ++tries) {
    if (tries < kTries) {
      relax();
    } else {
      std::this_thread::yield();
    }
  }
}

}  // namespace p2p
