// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// What goes wrong while GPU memory is moved ends what it concerns, with its reason, and nothing else.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "gpu_pair.h"
#include "support/bounds.h"
#include "support/eventually.h"
#include "support/peer.h"

namespace p2p::testing {
namespace {

class GpuFaults : public GpuTest {
 protected:
  bool over_tcp() const { return std::string(config().transport) == "tcp"; }
};
P2P_OVER_GPUS(GpuFaults);

Piece whole(const SideMemory& mine, std::uint32_t id, const SideMemory& theirs, std::size_t size) {
  return {mine.index(), id, 0, theirs.address(0), size};
}

TEST_P(GpuFaults, PeerKilledInTheMiddle) {
  constexpr std::size_t kSize = 256 * kMiB;
  constexpr std::uint64_t kTimes = 2000;
  const SidePlan plan{.transport = config().transport};
  const auto pair = own_pair(plan);
  const SideMemory mine(pair->left, config().left_place(), kSize);
  const SideMemory into(pair->left, config().left_place(), kSize);
  const SideMemory theirs(pair->right, config().right_place(), kSize);
  const std::uint32_t id = theirs.imported_by(pair->left);
  mine.fill(1);
  const Piece out = whole(mine, id, theirs, kSize);
  const Piece back = whole(into, id, theirs, kSize);
  ASSERT_TRUE(is_ok(pair->left.transfer("write", {&out, 1})));
  theirs.set(kUntouched);
  const std::uint64_t first = pair->left.post("write", {&out, 1}, kTimes);
  pair->left.post("read", {&back, 1}, kTimes);
  ASSERT_TRUE(eventually([&] { return !theirs.is_set(0, kSize, kUntouched); })) << "no transfer has begun";
  pair->right.kill();
  const Outcomes outcomes = pair->left.outcomes(first, 2 * kTimes, plan.keepalive + kMargin);
  EXPECT_EQ(outcomes.unfinished, 0U) << "after " << (plan.keepalive + kMargin).count() << " ms";
  EXPECT_GT(outcomes.bad, 0U) << "none was under way when the peer died";
  EXPECT_EQ(outcomes.good + outcomes.bad, 2 * kTimes);
  EXPECT_EQ(outcomes.silent, 0U);
  EXPECT_EQ(outcomes.codes, "peer_gone") << outcomes.message;

  // The survivor's CUDA works on: old memory, new memory, and a new peer.
  EXPECT_TRUE(mine.holds_pattern(0, kSize, 1, 0));
  Side other(plan);
  const SideMemory fresh(other, config().right_place(), kSize, 1);
  connect(pair->left, other);
  mine.fill(2);
  fresh.set(kUntouched);
  const Piece again{mine.index(), fresh.imported_by(pair->left), 0, fresh.address(1), kSize};
  ASSERT_TRUE(is_ok(pair->left.transfer("write", {&again, 1})));
  EXPECT_TRUE(fresh.holds_pattern(1, kSize, 2, 0));
}

TEST_P(GpuFaults, ARegionTakenBackInTheMiddleFailsItsOwnTransfers) {
  constexpr std::size_t kSize = 64 * kMiB;
  // So that what was posted last waits for a while over either.
  const std::uint64_t times = over_tcp() ? 30 : 200;
  constexpr int kRounds = 8;
  GpuPair& both = pair();
  const SideMemory mine(both.left, config().left_place(), kSize);
  const SideMemory kept(both.right, config().right_place(), kSize);
  const SideMemory taken(both.right, config().right_place(), kSize);
  mine.fill(3);
  const Piece to_kept = whole(mine, kept.imported_by(both.left), kept, kSize);
  const Piece to_taken = whole(mine, taken.imported_by(both.left), taken, kSize);
  ASSERT_TRUE(is_ok(both.left.transfer("write", {&to_taken, 1})));
  kept.set(kUntouched);
  const std::uint64_t first = both.left.post("write", {&to_kept, 1}, times);
  for (int round = 1; round < kRounds; ++round) {
    both.left.post("write", {&to_taken, 1}, times);
    both.left.post("write", {&to_kept, 1}, times);
  }
  ASSERT_TRUE(is_ok(status_of(both.right.call(fmt::format("revoke {}", taken.index())))));
  taken.set(kUntouched);
  // Blocks of transfers to the one and the other in turns.
  Outcomes failed;
  for (std::uint64_t block = 0; block < 2 * kRounds - 1; ++block) {
    const Outcomes outcomes = both.left.outcomes(first + block * times, times, kLimit);
    EXPECT_EQ(outcomes.unfinished, 0U);
    EXPECT_EQ(outcomes.silent, 0U);
    if (block % 2 == 0) {
      EXPECT_EQ(outcomes.bad, 0U) << "to the region that stays: " << outcomes.message;
    } else if (outcomes.bad > 0) {
      failed = outcomes;
    }
  }
  EXPECT_GT(failed.bad, 0U) << "none was under way when the region was taken back";
  EXPECT_TRUE(kept.holds_pattern(0, kSize, 3, 0));
  EXPECT_TRUE(taken.is_set(0, kSize, kUntouched)) << "touched after it was taken back";
  const std::initializer_list<ErrorCode> refused{ErrorCode::kNotFound, ErrorCode::kPermissionDenied};
  EXPECT_TRUE(is_error(both.left.transfer("write", {&to_taken, 1}), refused));
  EXPECT_TRUE(is_error(both.left.transfer("read", {&to_taken, 1}), refused));
  EXPECT_TRUE(is_ok(both.left.transfer("read", {&to_kept, 1})));
}

TEST_P(GpuFaults, MyOwnRegionTakenBackInTheMiddle) {
  constexpr std::size_t kSize = 64 * kMiB;
  constexpr std::uint64_t kTimes = 100;
  GpuPair& both = pair();
  const SideMemory kept(both.left, config().left_place(), kSize);
  const SideMemory taken(both.left, config().left_place(), kSize);
  const SideMemory theirs(both.right, config().right_place(), 2 * kSize);
  kept.fill(5);
  taken.fill(6);
  const std::uint32_t id = theirs.imported_by(both.left);
  const Piece from_kept = whole(kept, id, theirs, kSize);
  const Piece from_taken{taken.index(), id, 0, theirs.address(kSize), kSize};
  const std::uint64_t first = both.left.post("write", {&from_taken, 1}, kTimes);
  both.left.post("write", {&from_kept, 1}, kTimes);
  ASSERT_TRUE(is_ok(status_of(both.left.call(fmt::format("revoke {}", taken.index())))));
  const Outcomes outcomes = both.left.outcomes(first, 2 * kTimes, kLimit);
  EXPECT_EQ(outcomes.good, 2 * kTimes) << "what was posted before keeps its memory; " << outcomes.message;
  EXPECT_TRUE(is_error(both.left.transfer("write", {&from_taken, 1}), {ErrorCode::kNotFound}));
  EXPECT_TRUE(is_ok(both.left.transfer("write", {&from_kept, 1})));
  EXPECT_TRUE(theirs.holds_pattern(0, kSize, 5, 0));
  EXPECT_TRUE(theirs.holds_pattern(kSize, kSize, 6, 0));
}

TEST_P(GpuFaults, MemoryThatWasFreedUnderItsRegion) {
  constexpr std::size_t kSize = 64 * kMiB;
  const std::uint64_t times = over_tcp() ? 20 : 200;
  GpuPair& both = pair();
  const SideMemory kept(both.left, config().left_place(), kSize);
  const SideMemory freed(both.left, config().left_place(), kSize);
  const SideMemory theirs(both.right, config().right_place(), kSize);
  kept.fill(7);
  const std::uint32_t id = theirs.imported_by(both.left);
  const Piece from_kept = whole(kept, id, theirs, kSize);
  const Piece from_freed = whole(freed, id, theirs, kSize);
  ASSERT_TRUE(is_ok(status_of(both.left.call(fmt::format("free_only {}", freed.index())))));
  const std::uint64_t first = both.left.post("write", {&from_kept, 1}, times);
  const std::uint64_t bad = both.left.post("write", {&from_freed, 1}, times);
  both.left.post("write", {&from_kept, 1}, times);
  const Outcomes outcomes = both.left.outcomes(bad, times, kLimit);
  EXPECT_EQ(outcomes.bad, times);
  EXPECT_EQ(outcomes.codes, "not_found") << outcomes.message;
  EXPECT_NE(outcomes.message.find("freed"), std::string::npos) << outcomes.message;
  EXPECT_EQ(both.left.outcomes(first, times, kLimit).good, times);
  EXPECT_EQ(both.left.outcomes(bad + times, times, kLimit).good, times);
  EXPECT_TRUE(theirs.holds_pattern(0, kSize, 7, 0));
}

}  // namespace
}  // namespace p2p::testing
