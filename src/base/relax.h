// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>

namespace p2p {

/// For loops that poll: a short pause of the processor between two reads.
inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // `yield` does nothing on most of these processors
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace p2p
