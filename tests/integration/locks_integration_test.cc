// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// How many locks the caller's thread takes while it submits one write. The program's own pthread functions
// stand before the C library's and count; the library is compiled as it ships.
#include <dlfcn.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>

#include "support/peer.h"

namespace p2p::testing {
namespace {

struct Locks {
  static constexpr std::size_t kMost = 64;

  bool counting = false;
  std::size_t taken = 0;
  std::array<const void*, kMost> which{};
  std::array<const void*, kMost> callers{};

  void note(const void* lock, const void* caller) {
    if (!counting) return;
    if (taken < kMost) {
      which[taken] = lock;
      callers[taken] = caller;
    }
    ++taken;
  }

  // For addr2line or a debugger.
  std::string describe() const {
    std::string text = fmt::format("{} locks", taken);
    for (std::size_t i = 0; i < std::min(taken, kMost); ++i) {
      Dl_info place{};
      ::dladdr(callers[i], &place);
      text += fmt::format(
          "\n  lock {} taken at {}+{:#x}", which[i], place.dli_fname != nullptr ? place.dli_fname : "?",
          reinterpret_cast<std::uintptr_t>(callers[i]) - reinterpret_cast<std::uintptr_t>(place.dli_fbase));
    }
    return text;
  }
};

thread_local Locks locks;

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

}  // namespace
}  // namespace p2p::testing

extern "C" {

int pthread_mutex_lock(pthread_mutex_t* mutex) {
  static const auto real = p2p::testing::next<int (*)(pthread_mutex_t*)>("pthread_mutex_lock");
  p2p::testing::locks.note(mutex, __builtin_return_address(0));
  return real(mutex);
}

int pthread_mutex_trylock(pthread_mutex_t* mutex) {
  static const auto real = p2p::testing::next<int (*)(pthread_mutex_t*)>("pthread_mutex_trylock");
  p2p::testing::locks.note(mutex, __builtin_return_address(0));
  return real(mutex);
}

int pthread_rwlock_rdlock(pthread_rwlock_t* lock) {
  static const auto real = p2p::testing::next<int (*)(pthread_rwlock_t*)>("pthread_rwlock_rdlock");
  p2p::testing::locks.note(lock, __builtin_return_address(0));
  return real(lock);
}

int pthread_rwlock_wrlock(pthread_rwlock_t* lock) {
  static const auto real = p2p::testing::next<int (*)(pthread_rwlock_t*)>("pthread_rwlock_wrlock");
  p2p::testing::locks.note(lock, __builtin_return_address(0));
  return real(lock);
}

}  // extern "C"

namespace p2p::testing {
namespace {

constexpr std::size_t kBytes = std::size_t{64} << 10;
constexpr std::size_t kMostLocks = 4;

// Of many writes the one with the fewest locks: a worker that was just at the channel makes a caller queue
// his write.
std::size_t fewest_locks(const Connection& connection, const LocalSpan& from, const RemoteSpan& to) {
  Locks fewest;
  fewest.taken = Locks::kMost;
  for (int round = 0; round < 100; ++round) {
    locks = {};
    locks.counting = true;
    Transfer transfer = connection.write(from, to);
    locks.counting = false;
    if (locks.taken < fewest.taken) fewest = locks;
    EXPECT_TRUE(is_ok(transfer.wait(kLimit)));
  }
  std::fputs((fewest.describe() + "\n").c_str(), stdout);
  return fewest.taken;
}

TEST(Locks, OfOneWriteOverTcp) {
  Pair pair(plan_over("tcp"));
  OwnRegion own(pair.endpoint, kBytes);
  const PeerRegion theirs = pair.peer.region(kBytes);
  const auto there = pair.connection.import_region(theirs.descriptor);
  ASSERT_TRUE(is_ok(status_of(there)));
  EXPECT_LE(fewest_locks(pair.connection, own.span(0, kBytes), {*there, theirs.descriptor.address, kBytes}),
            kMostLocks);
}

// Both sides are here, and the caller's thread does the peer's look-up in its table, too: one lock more.
TEST(Locks, OfOneWriteOverLoopback) {
  const EndpointPlan plan = plan_over("loopback");
  Endpoint here = make_endpoint(plan);
  Endpoint there = make_endpoint(plan);
  const auto connection = here.connect("127.0.0.1", there.port(), kLimit);
  const auto accepted = there.accept(kLimit);
  ASSERT_TRUE(is_ok(status_of(connection)) && is_ok(status_of(accepted)));
  OwnRegion own(here, kBytes);
  OwnRegion theirs(there, kBytes);
  const auto target = connection->import_region(theirs.region.descriptor());
  ASSERT_TRUE(is_ok(status_of(target)));
  EXPECT_LE(
      fewest_locks(*connection, own.span(0, kBytes), {*target, theirs.region.descriptor().address, kBytes}),
      kMostLocks + 1);
}

}  // namespace
}  // namespace p2p::testing
