// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// GPU memory that was handed back stays untouched, whatever the peer was doing when its connection ended.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>

#include "gpu_pair.h"
#include "support/bounds.h"
#include "support/eventually.h"
#include "support/peer.h"

namespace p2p::testing {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kWritten = std::size_t{4} << 20;

/// A side that writes to the other's memory, again and again, until its connection ends.
class Writing {
 public:
  Writing(Side& writer, const std::string& place, const SideMemory& into, std::size_t size)
      : writer_(writer), source_(writer, place, kWritten) {
    source_.fill(5);
    const Piece piece{source_.index(), into.imported_by(writer), 0, into.address(0), size};
    std::ranges::copy(std::as_bytes(std::span(&piece, 1)), writer.window().bytes().begin());
    writer.begin(fmt::format("repeat write 1 {} 8", std::uint64_t{1} << 40));
    EXPECT_TRUE(eventually([&] { return !into.is_set(0, size, kUntouched); })) << "nothing is written";
  }

  /// Waits until it has heard of the end, and nothing of it is under way any more.
  void end() {
    EXPECT_TRUE(is_error(status_of(writer_.finish()), {ErrorCode::kPeerGone}));
    static_cast<void>(writer_.call("close 0"));
  }

 private:
  Side& writer_;
  const SideMemory source_;
};

class GpuFence : public GpuTest {
 protected:
  bool over_tcp() const { return std::string(config().transport) == "tcp"; }

  Status release(Side& owner, const SideMemory& memory, std::chrono::milliseconds within) {
    return status_of(owner.call(fmt::format("release {} {}", memory.index(), within.count())));
  }
};
P2P_OVER_GPUS(GpuFence);

// It may be stopped between its last look and the start of a copy.
TEST_P(GpuFence, AStoppedPeerHoldsTheMemoryUntilItGoesOn) {
  constexpr int kRounds = 6;
  constexpr std::chrono::milliseconds kKeepalive{400};
  const auto made = own_pair({.keepalive = kKeepalive});
  std::mt19937 random(7);
  for (int round = 0; round < kRounds; ++round) {
    SCOPED_TRACE(round);
    const bool dialler_writes = round % 2 == 0;
    Side& writer = dialler_writes ? made->left : made->right;
    Side& owner = dialler_writes ? made->right : made->left;
    const SideMemory memory(owner, dialler_writes ? config().right_place() : config().left_place(), kWritten);
    memory.set(kUntouched);
    const std::size_t size = kWritten >> (round % 11);
    Writing writing(writer, dialler_writes ? config().left_place() : config().right_place(), memory, size);
    const auto until = Clock::now() + std::chrono::microseconds(random() % 3000);
    while (Clock::now() < until) continue;  // somewhere in the writer's way
    writer.stop();
    ASSERT_TRUE(is_ok(status_of(owner.call("close 0"))));
    const Status early = release(owner, memory, 3 * kKeepalive);  // by then the connection has ended
    if (over_tcp()) {
      EXPECT_TRUE(is_ok(early)) << "nobody but the owner writes";
    } else {
      EXPECT_TRUE(is_error(early, {ErrorCode::kTimedOut}));
      EXPECT_TRUE(early || early.error().message.find("may still write here") != std::string::npos)
          << early.error().message;
    }
    if (early) memory.set(kUntouched);
    writer.go_on();
    if (!early) {
      EXPECT_TRUE(is_ok(release(owner, memory, kLimit))) << "the peer is through";
      memory.set(kUntouched);
    }
    writing.end();
    EXPECT_TRUE(memory.is_set(0, kWritten, kUntouched)) << "written to after it was released";
    connect(made->left, made->right);
  }
}

TEST_P(GpuFence, TheEndOfThePeersProcessEndsTheWait) {
  const auto made = own_pair();
  const SideMemory memory(made->right, config().right_place(), kWritten);
  memory.set(kUntouched);
  const Writing writing(made->left, config().left_place(), memory, kWritten);
  made->left.stop();
  ASSERT_TRUE(is_ok(status_of(made->right.call("close 0"))));
  made->left.kill();
  const auto start = Clock::now();
  EXPECT_TRUE(is_ok(release(made->right, memory, kLimit)));
  EXPECT_LT(Clock::now() - start, kMargin);
  memory.set(kUntouched);
  EXPECT_TRUE(memory.is_set(0, kWritten, kUntouched));
}

// The peer copies what its process alone reaches, to memory here.
TEST_P(GpuFence, AReadThatAPeerCopiesFailsOnceNothingComesToItAnyMore) {
  if (over_tcp()) GTEST_SKIP() << "nobody but the reader writes";
  constexpr int kRounds = 8;
  constexpr std::size_t kLarge = 4 * kWritten;
  constexpr std::uint64_t kTimes = 5000;
  constexpr std::chrono::milliseconds kKeepalive{400};
  const auto made = own_pair({.keepalive = kKeepalive});
  for (int round = 0; round < kRounds; ++round) {
    SCOPED_TRACE(round);
    const SideMemory memory(made->left, config().left_place(), kLarge);
    const SideMemory theirs(made->right, fmt::format("pooled:{}", config().two ? 1 : 0), kLarge);
    const Piece piece{memory.index(), theirs.imported_by(made->left), 0, theirs.address(0), kLarge};
    ASSERT_TRUE(is_ok(made->left.transfer("read", {&piece, 1})));
    const std::uint64_t first = made->left.post("read", {&piece, 1}, kTimes);
    made->right.stop();
    static_cast<void>(made->left.call("close 0"));  // though much is under way
    // Every other time the peer goes on before the reads have failed, but for those who wait for it.
    const bool goes_on = round % 2 == 0;
    if (goes_on) {
      std::this_thread::sleep_for(kKeepalive * 3 / 2);
      made->right.go_on();
    }
    const Outcomes outcomes = made->left.outcomes(first, kTimes, kLimit);
    EXPECT_EQ(outcomes.unfinished, 0U);
    const bool free = outcomes.message.find("may still write here") == std::string::npos;
    const Status early = free ? Status() : release(made->left, memory, kKeepalive);
    if (early) memory.set(kUntouched);
    if (!goes_on) made->right.go_on();
    if (!early) {
      EXPECT_TRUE(is_ok(release(made->left, memory, kLimit))) << "the peer is through";
      memory.set(kUntouched);
    }
    static_cast<void>(made->right.call("close 0"));
    EXPECT_TRUE(memory.is_set(0, kLarge, kUntouched)) << "written to after it was free";
    connect(made->left, made->right);
  }
}

TEST_P(GpuFence, APeerThatHearsOfTheEndIsThroughAtOnce) {
  const auto made = own_pair();
  const SideMemory memory(made->right, config().right_place(), kWritten);
  memory.set(kUntouched);
  Writing writing(made->left, config().left_place(), memory, kWritten);
  const auto start = Clock::now();
  ASSERT_TRUE(is_ok(status_of(made->right.call("close 0"))));
  EXPECT_TRUE(is_ok(release(made->right, memory, kLimit)));
  EXPECT_LT(Clock::now() - start, kMargin);
  memory.set(kUntouched);
  writing.end();
  EXPECT_TRUE(memory.is_set(0, kWritten, kUntouched)) << "written to after it was released";
}

}  // namespace
}  // namespace p2p::testing
