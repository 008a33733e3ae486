// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/memory_guard.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>

#include "base/log.h"

namespace p2p {
namespace {

// More than the end of a connection of some hundred transfers takes. So much comes from the system and goes
// back to it, so that every thread may have it.
constexpr std::size_t kReserveBytes = std::size_t{1} << 20;

std::atomic<void*> set_aside{nullptr};

}  // namespace

void MemoryReserve::fill() {
  if (set_aside.load() != nullptr) return;
  std::free(set_aside.exchange(std::malloc(kReserveBytes)));
}

MemoryReserve::MemoryReserve() { std::free(set_aside.exchange(nullptr)); }

void log_out_of_memory(std::string_view doing) {
  try {
    log(LogLevel::kError, "{}: {} was given up", kOutOfMemory, doing);
  } catch (const std::bad_alloc&) {  // then nobody hears of it
  }
}

}  // namespace p2p
