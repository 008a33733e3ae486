// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <new>
#include <string_view>

namespace p2p {

/// For errors: the process may have no more memory.
inline constexpr std::string_view kOutOfMemory = "this process is out of memory";

/// Memory that the process sets aside, so that what ran out of it can be ended in good order.
class MemoryReserve {
 public:
  /// Sets it aside where it is not. Nothing happens if there is no memory for it.
  static void fill();

  /// Makes it free to be allocated while this lives, then fills it again.
  MemoryReserve();
  ~MemoryReserve() { fill(); }
  MemoryReserve(const MemoryReserve&) = delete;
  MemoryReserve& operator=(const MemoryReserve&) = delete;
};

/// Logs that `doing` was given up for want of memory.
void log_out_of_memory(std::string_view doing);

/// Runs `work`. If it runs out of memory, runs `give_up`, which ends what it was about, with the reserve. For
/// the threads of the engine, on which nobody else would catch that.
template <class Work, class GiveUp>
void guard_memory(std::string_view doing, const Work& work, const GiveUp& give_up) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    const MemoryReserve reserve;
    log_out_of_memory(doing);
    try {
      give_up();
    } catch (const std::bad_alloc&) {
      log_out_of_memory(doing);
    }
  }
}

template <class Work>
void guard_memory(std::string_view doing, const Work& work) {
  guard_memory(doing, work, [] {});
}

}  // namespace p2p
