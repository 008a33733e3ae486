// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/guarded_copy.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <thread>
#include <vector>

#include "base/thread.h"
#include "support/memory.h"
#include "support/process.h"

namespace p2p {
namespace {

using testing::Bad;
using testing::in_child;
using testing::kPage;
using testing::Pages;
using testing::ProcessEnd;

constexpr std::array kBad{Bad::kReadOnly, Bad::kProtected, Bad::kCut};

bool tells(Bad how) {
  Pages pages(kPage);
  testing::spoil(pages.bytes(), how);
  std::byte own{};
  return !guarded_copy(&own, pages.data(), 1);
}

void fault() { *static_cast<volatile char*>(nullptr) = 1; }

extern "C" void take_and_leave(int) { ::_exit(7); }

TEST(GuardedCopy, CopiesAnySizeFromAndToAnyByte) {
  std::vector<std::byte> from(5000);
  testing::fill(from, 1);
  for (std::size_t size : {0, 1, 2, 7, 15, 16, 17, 31, 64, 100, 4096, 4100}) {
    for (std::size_t at : {0, 1, 3, 8, 13}) {
      std::vector<std::byte> to(5000);
      ASSERT_TRUE(guarded_copy(to.data() + at, from.data() + 2 * at, size));
      EXPECT_TRUE(std::equal(to.begin() + static_cast<std::ptrdiff_t>(at),
                             to.begin() + static_cast<std::ptrdiff_t>(at + size),
                             from.begin() + static_cast<std::ptrdiff_t>(2 * at)));
      EXPECT_EQ(std::count(to.begin() + static_cast<std::ptrdiff_t>(at + size), to.end(), std::byte{}),
                static_cast<std::ptrdiff_t>(5000 - at - size));
    }
  }
}

void expect_told(Bad how) {
  Pages pages(2 * kPage);
  testing::fill(pages.bytes(), 1);
  testing::spoil(pages.part(kPage, kPage), how);
  std::vector<std::byte> own(kPage);
  for (const std::size_t size : {std::size_t{1}, std::size_t{100}, kPage}) {
    for (const std::size_t good : {std::size_t{0}, size / 2, size - 1}) {
      std::byte* const at = pages.data() + kPage - good;
      EXPECT_EQ(guarded_copy(own.data(), at, size), how == Bad::kReadOnly);
      EXPECT_FALSE(guarded_copy(at, own.data(), size));
    }
    EXPECT_TRUE(guarded_copy(pages.data(), own.data(), size)) << "what is beside it is good";
  }
}

TEST(GuardedCopy, SaysThatMemoryIsBad) {
  for (const Bad how : kBad) {
    SCOPED_TRACE(static_cast<unsigned>(how));
    expect_told(how);
  }
}

TEST(GuardedCopy, SaysSoOnThreadsOfTheEngineAndOnManyAtOnce) {
  std::vector<std::thread> threads;
  for (int i = 0; i != 4; ++i) {
    auto thread = start_thread("guarded", [] {
      for (int round = 0; round != 20; ++round) expect_told(kBad[static_cast<std::size_t>(round % 3)]);
    });
    ASSERT_TRUE(thread);
    threads.push_back(std::move(*thread));
  }
  for (auto& thread : threads) thread.join();
}

#if !defined(P2P_ASAN) && !defined(P2P_TSAN)
TEST(GuardedCopy, OtherFaultsEndTheProcessAsBefore) {
  ProcessEnd end = in_child([] {
    if (!tells(Bad::kProtected)) return 1;
    fault();
    return 3;
  });
  EXPECT_EQ(end, ProcessEnd{.signal = SIGSEGV});
  end = in_child([] {
    if (!tells(Bad::kProtected)) return 1;
    return ::kill(::getpid(), SIGBUS);
  });
  EXPECT_EQ(end, ProcessEnd{.signal = SIGBUS});
}
#endif

TEST(GuardedCopy, SaysSoOnThreadsThatBlockAllSignals) {
  const ProcessEnd end = in_child([] {
    if (!tells(Bad::kProtected)) return 1;
    std::thread([] {
      sigset_t all;
      ::sigfillset(&all);
      ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
      ::_exit(tells(Bad::kProtected) ? 7 : 2);
    }).join();
    return 3;
  });
  EXPECT_EQ(end, ProcessEnd{.code = 7});
}

TEST(GuardedCopy, LeavesHandlersThatComeLaterInPlace) {
  const ProcessEnd end = in_child([] {
    if (!tells(Bad::kProtected)) return 1;
    ::signal(SIGSEGV, take_and_leave);
    look_after_guard();
    if (!tells(Bad::kProtected)) return 2;  // the system copies
    fault();
    return 3;
  });
  EXPECT_EQ(end, ProcessEnd{.code = 7});
}

}  // namespace
}  // namespace p2p
