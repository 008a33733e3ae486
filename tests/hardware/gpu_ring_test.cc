// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Memory that neither side can share: by cuda_ipc through a ring of the peer's, by tcp as ever.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "gpu_memory.h"
#include "gpu_pair.h"
#include "support/bounds.h"
#include "support/eventually.h"
#include "support/peer.h"

namespace p2p::testing {
namespace {

constexpr std::array kPrivate{"private", "pooled", "open_pool"};

class GpuRing : public GpuTest {
 protected:
  bool over_tcp() const { return std::string(config().transport) == "tcp"; }
  std::string right_place(const char* kind) const { return fmt::format("{}:{}", kind, config().two ? 1 : 0); }
};
P2P_OVER_GPUS(GpuRing);

TEST_P(GpuRing, EveryByteBothWaysWhateverTheKinds) {
  for (const char* const here : kPrivate) {
    for (const char* const there : kPrivate) {
      SCOPED_TRACE(fmt::format("{} and {}", here, there));
      const std::string left = fmt::format("{}:0", here);
      write_and_read(pair(), left, right_place(there), scattered(4000, 11, 5), 5);
      write_and_read(pair(), left, right_place(there), {{9, 12, 40 * kMiB + 3}}, 5);
    }
  }
}

// From one byte to more than all slots hold, and such lists.
TEST_P(GpuRing, EverySize) {
  const std::vector<std::size_t> sizes{1,        15,       4096,          64 << 10,  kMiB,
                                       kMiB + 1, 8 * kMiB, 33 * kMiB + 7, 300 * kMiB};
  for (const std::size_t size : sizes) {
    if (size > 64 * kMiB && !widest()) continue;
    SCOPED_TRACE(size);
    write_and_read(pair(), "private:0", right_place("private"), {{0, 0, size}}, 0);
    write_and_read(pair(), "private:0", right_place("private"), {{3, 6, size}}, 3);
  }
  std::vector<Block> blocks;
  for (std::size_t i = 0; i != 10000; ++i) blocks.push_back({i * 4096, (9999 - i) * 4096, 4096});
  write_and_read(pair(), "private:0", right_place("private"), blocks, 0);
}

TEST_P(GpuRing, SaysWhatItTakes) {
  GpuPair& both = pair();
  const SideMemory mine(both.left, "private:0", kMiB);
  const SideMemory theirs(both.right, right_place("private"), kMiB);
  const Piece piece{mine.index(), theirs.imported_by(both.left), 0, theirs.address(0), kMiB};
  ASSERT_TRUE(is_ok(both.left.transfer("write", {&piece, 1})));
  const auto told = both.left.call(fmt::format("explain {} {}", piece.memory, piece.remote));
  ASSERT_TRUE(is_ok(status_of(told)));
  EXPECT_EQ(told->substr(0, told->find(' ')), config().transport);
}

// With all transports to choose from, memory that was registered after the peer's was imported.
TEST_P(GpuRing, ServesMemoryThatComesLater) {
  if (over_tcp()) GTEST_SKIP() << "done once";
  GpuPair both({}, config().left_place(), config().right_place());
  const SideMemory theirs(both.right, right_place("pooled"), kMiB);
  const std::uint32_t id = theirs.imported_by(both.left);
  const SideMemory mine(both.left, "pooled:0", kMiB);
  const auto by_cuda_ipc = [&] {
    const auto told = both.left.call(fmt::format("explain {} {}", mine.index(), id));
    return told && told->starts_with("cuda_ipc ");
  };
  EXPECT_TRUE(eventually(by_cuda_ipc));
  const Piece piece{mine.index(), id, 0, theirs.address(0), kMiB};
  mine.fill(4);
  ASSERT_TRUE(is_ok(both.left.transfer("write", {&piece, 1})));
  EXPECT_TRUE(theirs.holds_pattern(0, kMiB, 4, 0));
}

// A list with memory of all sorts at both ends.
TEST_P(GpuRing, BesideSharedMemoryInOneList) {
  GpuPair& both = pair();
  const SideMemory open(both.left, config().left_place(), 4 * kMiB);
  const SideMemory closed(both.left, "private:0", 4 * kMiB);
  const SideMemory there(both.right, config().right_place(), 4 * kMiB);
  const SideMemory shut(both.right, right_place("private"), 4 * kMiB);
  const std::uint32_t id = there.imported_by(both.left);
  const std::uint32_t shut_id = shut.imported_by(both.left);
  const std::array pieces{Piece{open.index(), id, 0, there.address(0), 2 * kMiB},
                          Piece{closed.index(), shut_id, 0, shut.address(0), 2 * kMiB},
                          Piece{closed.index(), id, 2 * kMiB, there.address(2 * kMiB), 2 * kMiB},
                          Piece{open.index(), shut_id, 2 * kMiB, shut.address(2 * kMiB), 2 * kMiB}};
  open.fill(6);
  closed.fill(7);
  ASSERT_TRUE(is_ok(both.left.transfer("write", pieces)));
  EXPECT_TRUE(there.holds_pattern(0, 2 * kMiB, 6, 0));
  EXPECT_TRUE(there.holds_pattern(2 * kMiB, 2 * kMiB, 7, 2 * kMiB));
  EXPECT_TRUE(shut.holds_pattern(0, 2 * kMiB, 7, 0));
  EXPECT_TRUE(shut.holds_pattern(2 * kMiB, 2 * kMiB, 6, 2 * kMiB));
  open.set(kUntouched);
  closed.set(kUntouched);
  ASSERT_TRUE(is_ok(both.left.transfer("read", pieces)));
  EXPECT_TRUE(open.holds_pattern(0, 2 * kMiB, 6, 0));
  EXPECT_TRUE(closed.holds_pattern(0, 2 * kMiB, 7, 0));
  EXPECT_TRUE(closed.holds_pattern(2 * kMiB, 2 * kMiB, 7, 2 * kMiB));
  EXPECT_TRUE(open.holds_pattern(2 * kMiB, 2 * kMiB, 6, 2 * kMiB));
}

TEST_P(GpuRing, BothSidesAtOnceAndManyAtOnce) {
  constexpr std::size_t kSize = 32 * kMiB;
  constexpr std::uint64_t kTimes = 20;
  GpuPair& both = pair();
  const SideMemory mine(both.left, "private:0", 2 * kSize);
  const SideMemory theirs(both.right, right_place("private"), 2 * kSize);
  mine.fill(1);
  theirs.fill(2);
  // The left side writes its first half into the right one's first; that one reads the second half.
  const Piece out{mine.index(), theirs.imported_by(both.left), 0, theirs.address(0), kSize};
  const Piece in{theirs.index(), mine.imported_by(both.right), kSize, mine.address(kSize), kSize};
  const std::uint64_t first = both.left.post("write", {&out, 1}, kTimes);
  const std::uint64_t other = both.right.post("read", {&in, 1}, kTimes);
  EXPECT_EQ(both.left.outcomes(first, kTimes, kLimit).good, kTimes);
  EXPECT_EQ(both.right.outcomes(other, kTimes, kLimit).good, kTimes);
  EXPECT_TRUE(theirs.holds_pattern(0, 2 * kSize, 1, 0));
}

TEST_P(GpuRing, NothingLandsAfterACancelledTransfer) {
  constexpr std::size_t kSize = 128 * kMiB;
  constexpr std::uint64_t kTimes = 30;
  GpuPair& both = pair();
  const SideMemory mine(both.left, "private:0", kSize);
  const SideMemory theirs(both.right, right_place("private"), kSize);
  const Piece piece{mine.index(), theirs.imported_by(both.left), 0, theirs.address(0), kSize};
  for (const char* const operation : {"write", "read"}) {
    SCOPED_TRACE(operation);
    const SideMemory& into = operation == std::string("write") ? theirs : mine;
    ASSERT_TRUE(is_ok(both.left.transfer(operation, {&piece, 1})));
    const std::uint64_t first = both.left.post(operation, {&piece, 1}, kTimes);
    ASSERT_TRUE(is_ok(status_of(both.left.call(fmt::format("cancel {} {}", first, kTimes)))));
    const Outcomes outcomes = both.left.outcomes(first, kTimes, kLimit);
    EXPECT_EQ(outcomes.unfinished, 0U);
    EXPECT_GT(outcomes.bad, 0U);
    EXPECT_EQ(outcomes.codes, "cancelled") << outcomes.message;
    into.set(kUntouched);
    EXPECT_TRUE(into.is_set(0, kSize, kUntouched));
    into.fill(9);
    EXPECT_TRUE(into.holds_pattern(0, kSize, 9, 0));
  }
  mine.fill(3);
  ASSERT_TRUE(is_ok(both.left.transfer("write", {&piece, 1})));
  EXPECT_TRUE(theirs.holds_pattern(0, kSize, 3, 0));
}

TEST_P(GpuRing, ARegionTakenBackFailsItsOwnTransfers) {
  constexpr std::size_t kSize = 64 * kMiB;
  constexpr std::uint64_t kTimes = 60;
  GpuPair& both = pair();
  const SideMemory mine(both.left, "private:0", kSize);
  const SideMemory kept(both.right, right_place("private"), kSize);
  const SideMemory taken(both.right, right_place("private"), kSize);
  mine.fill(3);
  const Piece to_kept{mine.index(), kept.imported_by(both.left), 0, kept.address(0), kSize};
  const Piece to_taken{mine.index(), taken.imported_by(both.left), 0, taken.address(0), kSize};
  ASSERT_TRUE(is_ok(both.left.transfer("write", {&to_taken, 1})));
  const std::uint64_t bad = both.left.post("write", {&to_taken, 1}, kTimes);
  const std::uint64_t good = both.left.post("write", {&to_kept, 1}, kTimes);
  ASSERT_TRUE(is_ok(status_of(both.right.call(fmt::format("revoke {}", taken.index())))));
  taken.set(kUntouched);
  const Outcomes refused = both.left.outcomes(bad, kTimes, kLimit);
  EXPECT_EQ(refused.unfinished, 0U);
  EXPECT_EQ(refused.silent, 0U);
  EXPECT_EQ(both.left.outcomes(good, kTimes, kLimit).good, kTimes);
  EXPECT_TRUE(taken.is_set(0, kSize, kUntouched)) << "touched after it was taken back";
  EXPECT_TRUE(kept.holds_pattern(0, kSize, 3, 0));
}

TEST_P(GpuRing, PeerKilledInTheMiddle) {
  constexpr std::size_t kSize = 128 * kMiB;
  constexpr std::uint64_t kTimes = 1000;
  const SidePlan plan{.transport = config().transport};
  const auto made = own_pair(plan);
  const SideMemory mine(made->left, "private:0", kSize);
  const SideMemory theirs(made->right, right_place("private"), kSize);
  const Piece piece{mine.index(), theirs.imported_by(made->left), 0, theirs.address(0), kSize};
  mine.fill(1);
  ASSERT_TRUE(is_ok(made->left.transfer("write", {&piece, 1})));
  theirs.set(kUntouched);
  const std::uint64_t first = made->left.post("write", {&piece, 1}, kTimes);
  ASSERT_TRUE(eventually([&] { return !theirs.is_set(0, kSize, kUntouched); })) << "no transfer has begun";
  made->right.kill();
  const Outcomes outcomes = made->left.outcomes(first, kTimes, plan.keepalive + kMargin);
  EXPECT_EQ(outcomes.unfinished, 0U);
  EXPECT_GT(outcomes.bad, 0U) << "none was under way when the peer died";
  EXPECT_EQ(outcomes.codes, "peer_gone") << outcomes.message;
  EXPECT_TRUE(mine.holds_pattern(0, kSize, 1, 0));
  Side other(plan);
  const SideMemory fresh(other, right_place("private"), kSize);
  connect(made->left, other);
  const Piece again{mine.index(), fresh.imported_by(made->left), 0, fresh.address(0), kSize};
  ASSERT_TRUE(is_ok(made->left.transfer("write", {&again, 1})));
  EXPECT_TRUE(fresh.holds_pattern(0, kSize, 1, 0));
}

// The ring goes when the connection has ended: the peer's GPU has its memory back.
TEST_P(GpuRing, IsGivenBack) {
  if (over_tcp()) GTEST_SKIP() << "tcp has none";
  const auto made = own_pair();
  const int there = config().two ? 1 : 0;
  {
    const SideMemory mine(made->left, "private:0", kMiB);
    const SideMemory theirs(made->right, right_place("private"), kMiB);
    const Piece piece{mine.index(), theirs.imported_by(made->left), 0, theirs.address(0), kMiB};
    ASSERT_TRUE(is_ok(made->left.transfer("write", {&piece, 1})));
  }
  const std::uint64_t before = free_gpu_memory(there).value();
  made->left.kill();
  EXPECT_TRUE(eventually([&] { return free_gpu_memory(there).value() >= before + 48 * kMiB; }));
}

}  // namespace
}  // namespace p2p::testing
