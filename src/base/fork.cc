// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/fork.h"

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <ctime>
#include <memory>

#if defined(P2P_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

namespace p2p {
namespace {

// The descriptors to close, a bit for each, in chunks that stay once they are made: a child's handler may do
// nothing but look at them.
constexpr unsigned kBits = 64;
constexpr unsigned kChunkWords = 1U << 12;
constexpr unsigned kChunks = (1U << 31) / (kBits * kChunkWords);  // all numbers that an int has
using Chunk = std::array<std::atomic<std::uint64_t>, kChunkWords>;
constinit std::array<std::atomic<Chunk*>, kChunks> chunks{};

std::atomic<unsigned> uses{0};
std::atomic<bool> used_at_fork{false};

pthread_rwlock_t changing = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
thread_local bool holds_changing = false;  // of the thread that forks

// A thread may be held up in a call that should not wait. Its descriptor is then lost to the child's handler,
// which is better than a fork that hangs.
void before_fork() {
  timespec limit{};
  ::clock_gettime(CLOCK_MONOTONIC, &limit);
  ++limit.tv_sec;
#if defined(P2P_TSAN)
  __tsan_mutex_pre_lock(&changing, __tsan_mutex_try_lock);
#endif
  holds_changing = ::pthread_rwlock_clockwrlock(&changing, CLOCK_MONOTONIC, &limit) == 0;
#if defined(P2P_TSAN)
  __tsan_mutex_post_lock(&changing,
                         __tsan_mutex_try_lock | (holds_changing ? 0 : __tsan_mutex_try_lock_failed), 0);
#endif
}

void in_parent() {
  if (holds_changing) ::pthread_rwlock_unlock(&changing);
}

// Only what POSIX allows after a fork of a process with threads.
void in_child() {
  Birthplace::leave();
  if (uses.exchange(0) != 0) used_at_fork = true;
  for (unsigned i = 0; i < kChunks; ++i) {
    Chunk* const chunk = chunks[i].load(std::memory_order_relaxed);
    if (chunk == nullptr) continue;
    for (unsigned word = 0; word < kChunkWords; ++word) {
      std::uint64_t bits = (*chunk)[word].exchange(0, std::memory_order_relaxed);
      for (; bits != 0; bits &= bits - 1) {
        ::close(static_cast<int>((i * kChunkWords + word) * kBits) + std::countr_zero(bits));
      }
    }
  }
  // As new: the thread has another number here, by which glibc tells who unlocks, and others may have held
  // it.
  changing = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
#if defined(P2P_TSAN)
  if (holds_changing) {  // which it does not see by itself
    __tsan_mutex_pre_unlock(&changing, 0);
    __tsan_mutex_post_unlock(&changing, 0);
  }
#endif
}

void install_handlers() {
  static const int installed = ::pthread_atfork(before_fork, in_parent, in_child);
  static_cast<void>(installed);
}

std::atomic<std::uint64_t>& word_of(int fd) {
  const unsigned word = static_cast<unsigned>(fd) / kBits;
  std::atomic<Chunk*>& place = chunks[word / kChunkWords];
  Chunk* chunk = place.load(std::memory_order_acquire);
  if (chunk == nullptr) {
    auto made = std::make_unique<Chunk>();
    if (place.compare_exchange_strong(chunk, made.get())) chunk = made.release();
  }
  return (*chunk)[word % kChunkWords];
}

std::uint64_t bit_of(int fd) { return std::uint64_t{1} << (static_cast<unsigned>(fd) % kBits); }

}  // namespace

Birthplace::Birthplace() {
  install_handlers();
  forks_ = forks_so_far.load(std::memory_order_relaxed);
}

EngineUse::EngineUse() { uses.fetch_add(1); }

EngineUse::~EngineUse() {
  if (!birthplace_.left()) uses.fetch_sub(1);
}

bool forked_in_use() { return used_at_fork; }

DescriptorChange::DescriptorChange() { ::pthread_rwlock_rdlock(&changing); }
DescriptorChange::~DescriptorChange() { ::pthread_rwlock_unlock(&changing); }

void keep_from_children(int fd) {
  install_handlers();
  word_of(fd).fetch_or(bit_of(fd), std::memory_order_relaxed);
}

void forget_descriptor(int fd) { word_of(fd).fetch_and(~bit_of(fd), std::memory_order_relaxed); }

}  // namespace p2p
