// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <thread>

#include "base/mutex.h"
#include "base/relax.h"

namespace p2p {

/// Takes a mutex that is held for moments only. One that slept for it would be woken late, at the cost of the
/// one that has it.
inline void lock_polling(Mutex& mutex) P2P_ACQUIRE(mutex) {
  constexpr int kTries = 1000;  // before the mutex is taken to be held for longer
  for (int tries = 0; !mutex.try_lock(); ++tries) {
    if (tries < kTries) {
      relax();
    } else {
      std::this_thread::yield();
    }
  }
}

}  // namespace p2p
