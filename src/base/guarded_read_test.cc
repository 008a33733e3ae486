// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "base/block_hash.h"
#include "base/guarded_copy.h"
#include "base/relax.h"
#include "support/bounds.h"
#include "support/eventually.h"
#include "support/memory.h"
#include "support/process.h"

namespace p2p {
namespace {

using testing::Bad;
using testing::eventually;
using testing::in_child;
using testing::Pages;
using testing::ProcessEnd;

constexpr std::size_t kReadPage = 4096;

struct Sum {
  std::span<const std::byte> bytes;
  unsigned value = 0;
};

void add_up(void* argument) {
  auto& sum = *static_cast<Sum*>(argument);
  for (const std::byte one : sum.bytes) sum.value += static_cast<unsigned>(one);
}

/// Whether the bytes could all be read; nothing where the system has to copy.
std::optional<bool> read_all(std::span<const std::byte> bytes) {
  Sum sum{bytes};
  return guarded_read(bytes, add_up, &sum);
}

/// A sanitizer may keep its own handler: then nothing is read in place.
class GuardedRead : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::spoil(bad_.bytes(), Bad::kProtected);
    if (!read_all(good_.bytes())) GTEST_SKIP() << "the handler is not in place";
  }

  Pages good_{kReadPage};
  Pages bad_{kReadPage};
};

TEST_F(GuardedRead, LeavesTheReadAtBadMemoryAsOftenAsThereIsSome) {
  Pages good(2 * kReadPage);
  testing::fill(good.bytes(), 1);
  for (const Bad how : {Bad::kProtected, Bad::kCut}) {
    Pages pages(2 * kReadPage);
    testing::fill(pages.bytes(), 1);
    testing::spoil(pages.part(kReadPage, kReadPage), how);
    for (int round = 0; round != 3; ++round) {
      EXPECT_EQ(read_all(pages.bytes()), false);
      Sum first{pages.part(0, kReadPage)}, expected{good.part(0, kReadPage)};
      EXPECT_EQ(guarded_read(first.bytes, add_up, &first), true) << "what is beside it is good";
      add_up(&expected);
      EXPECT_EQ(first.value, expected.value);
      std::byte own{};
      EXPECT_FALSE(guarded_copy(&own, pages.data() + kReadPage, 1)) << "the other way out is there still";
    }
  }
}

/// Spoils pages of another thread's when told to, after a while that is too short to be slept.
class Spoiler {
 public:
  Spoiler() : thread_([this] { run(); }) {}
  ~Spoiler() {
    over_ = true;
    thread_.join();
  }
  Spoiler(const Spoiler&) = delete;
  Spoiler& operator=(const Spoiler&) = delete;

  void spoil(std::span<std::byte> pages, Bad how, unsigned pause) {
    // The fault comes before that call of the other thread has returned.
    EXPECT_TRUE(eventually([&] { return done_ == told_; }));
    pages_ = pages;
    how_ = how;
    pause_ = pause;
    told_.fetch_add(1);
  }

 private:
  void run() {
    while (!over_) {
      if (told_ == done_) {
        std::this_thread::yield();
        continue;
      }
      for (unsigned i = 0; i != pause_; ++i) relax();
      testing::spoil(pages_, how_);
      done_.fetch_add(1);
    }
  }

  std::span<std::byte> pages_;
  Bad how_{};
  unsigned pause_ = 0;
  std::atomic<unsigned> told_{0};
  std::atomic<unsigned> done_{0};
  std::atomic<bool> over_{false};
  std::thread thread_;
};

struct Hashing {
  std::span<const std::byte> bytes;
  std::vector<std::uint64_t> hashes = std::vector<std::uint64_t>(bytes.size() / kDigestBlock);
};

void hash_all(void* argument) {
  auto& [bytes, hashes] = *static_cast<Hashing*>(argument);
  hash_blocks(bytes.data(), hashes.size(), hashes.data());
}

// Whatever was hashed whole is what lay there.
TEST_F(GuardedRead, IsLeftWhenMemoryGoesWhileItIsHashed) {
  constexpr std::size_t kPages = 8;
  std::minstd_rand random;  // NOLINT(*-msc51-cpp): the same each time
  Spoiler spoiler;
  for (int round = 0; round != testing::scaled(1000, 100); ++round) {
    Pages pages(kPages * kReadPage);
    testing::fill(pages.bytes(), static_cast<std::uint64_t>(round));
    Hashing expected{pages.bytes()}, hashing{pages.bytes()};
    hash_all(&expected);
    constexpr std::array kWays{Bad::kProtected, Bad::kCut, Bad::kUnmapped};
    spoiler.spoil(pages.part(random() % kPages * kReadPage, kReadPage), kWays[random() % kWays.size()],
                  random() % 300);
    const auto until = std::chrono::steady_clock::now() + testing::kLimit;
    std::optional<bool> read;
    while ((read = guarded_read(pages.bytes(), hash_all, &hashing)).value_or(false)) {
      ASSERT_EQ(hashing.hashes, expected.hashes) << round;
      ASSERT_LT(std::chrono::steady_clock::now(), until) << round;
    }
    ASSERT_EQ(read, false) << round;
  }
}

/// Threads that read at the same time, until they are let go and meet bad memory.
class Readers {
 public:
  Readers(int count, const Pages& bad) {
    for (int i = 0; i != count; ++i) {
      threads_.emplace_back([this, &bad] {
        Reader reader{this, bad.data()};
        if (guarded_read(bad.bytes(), read, &reader) == false) ++left;
      });
    }
  }
  ~Readers() { let_go(); }
  Readers(const Readers&) = delete;
  Readers& operator=(const Readers&) = delete;

  void let_go() {
    go_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  std::atomic<int> reading{0};
  std::atomic<int> left{0};

 private:
  struct Reader {
    Readers* readers;
    const volatile std::byte* byte;
  };

  static void read(void* argument) {
    const auto& [readers, byte] = *static_cast<Reader*>(argument);
    ++readers->reading;
    while (!readers->go_) std::this_thread::yield();
    static_cast<void>(*byte);
  }

  std::atomic<bool> go_{false};
  std::vector<std::thread> threads_;
};

TEST_F(GuardedRead, IsLeftByAnyNumberOfThreadsAtATime) {
  constexpr int kThreads = 100;
  for (int round = 0; round != 3; ++round) {
    Readers readers(kThreads, bad_);
    EXPECT_TRUE(eventually([&] { return readers.reading == kThreads; })) << readers.reading;
    readers.let_go();
    EXPECT_EQ(readers.left, kThreads);
  }
}

TEST_F(GuardedRead, IsLeftInAChildOfAProcessWhoseThreadsRead) {
  constexpr int kThreads = 70;
  const Readers readers(kThreads, bad_);
  EXPECT_TRUE(eventually([&] { return readers.reading == kThreads; })) << readers.reading;
  const ProcessEnd end = in_child([&] { return read_all(bad_.bytes()) == false ? 7 : 3; });
  EXPECT_EQ(end, ProcessEnd{.code = 7});
}

TEST_F(GuardedRead, IsLeftThroughALaterHandlerThatPassesFaultsOn) {
  static struct sigaction before{};
  const ProcessEnd end = in_child([&] {
    struct sigaction later{};
    later.sa_flags = SA_SIGINFO;
    later.sa_sigaction = [](int number, siginfo_t* info, void* context) {
      before.sa_sigaction(number, info, context);
    };
    if (::sigaction(SIGSEGV, &later, &before) != 0) return 1;
    return read_all(bad_.bytes()) == false ? 7 : 3;
  });
  EXPECT_EQ(end, ProcessEnd{.code = 7});
}

TEST_F(GuardedRead, IsLeftToTheSystemOnceThereIsALaterHandler) {
  const ProcessEnd end = in_child([&] {
    ::signal(SIGSEGV, SIG_DFL);
    look_after_guard();
    return read_all(bad_.bytes()) ? 3 : 7;
  });
  EXPECT_EQ(end, ProcessEnd{.code = 7});
}

#if !defined(P2P_ASAN) && !defined(P2P_TSAN)
std::atomic<bool> expected{false};

// The program's handler, in place before any test has the guard put in place.
const auto before_all = ::signal(SIGSEGV, [](int number) {
  if (expected) ::_exit(7);
  ::signal(number, SIG_DFL);  // and it comes again
});

/// How a child ends that touches memory so, once the guard is known to be in place.
ProcessEnd end_of(const Pages& bad, const std::function<void()>& touch) {
  return in_child([&] {
    if (read_all(bad.bytes()) != false) return 1;
    expected = true;
    touch();
    return 3;
  });
}

void fault_elsewhere(void*) { *static_cast<volatile char*>(nullptr) = 1; }

TEST_F(GuardedRead, DoesNotTakeFaultsElsewhere) {
  EXPECT_EQ(end_of(bad_, [&] { guarded_read(bad_.bytes(), fault_elsewhere, nullptr); }),
            ProcessEnd{.code = 7});
  EXPECT_EQ(end_of(bad_, [] { fault_elsewhere(nullptr); }), ProcessEnd{.code = 7});
}

TEST_F(GuardedRead, DoesNotTakeThoseOfOtherThreadsAtTheSamePlace) {
  const auto by_another = [&] {
    const Readers readers(1, bad_);
    if (!eventually([&] { return readers.reading == 1; })) ::_exit(4);
    static_cast<void>(*static_cast<const volatile std::byte*>(bad_.data()));
  };
  EXPECT_EQ(end_of(bad_, by_another), ProcessEnd{.code = 7});
}
#endif

}  // namespace
}  // namespace p2p
