// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// From GPU memory here to host memory of another process and back, which no GPU of the other's reaches.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gpu_memory.h"
#include "gpu_pair.h"
#include "support/bounds.h"
#include "support/eventually.h"
#include "support/peer.h"

namespace p2p::testing {
namespace {

/// Over a transport, or over what the engine chooses.
class GpuToHost : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (gpu_count() == 0) GTEST_SKIP() << "no CUDA device";
  }

  static std::unique_ptr<GpuPair> own_pair(int blocks = -1) {
    return std::make_unique<GpuPair>(SidePlan{.transport = GetParam(), .blocks = blocks}, "cuda:0", "host");
  }

  static GpuPair& pair() {
    static std::map<std::string, std::unique_ptr<GpuPair>> pairs;
    std::unique_ptr<GpuPair>& kept = pairs[GetParam()];
    if (!kept || !kept->sound()) kept = own_pair();
    return *kept;
  }
};
INSTANTIATE_TEST_SUITE_P(Over, GpuToHost, ::testing::Values("", "cma", "tcp"), [](const auto& parameter) {
  return std::string(*parameter.param == '\0' ? "best" : parameter.param);
});

TEST_P(GpuToHost, TheRouteStaysWithinTheHost) {
  const auto route = pair().left.call("route cuda host");
  ASSERT_TRUE(is_ok(status_of(route)));
  const std::string wanted = std::string(GetParam()) == "tcp" ? "tcp" : "cma";
  EXPECT_EQ(route->substr(0, route->find(' ')), wanted) << *route;
}

TEST_P(GpuToHost, OneBlockOfAnySize) {
  for (const std::size_t size :
       {std::size_t{1}, std::size_t{4095}, 64 * kKiB + 1, 5 * kMiB + 7, 256 * kMiB + 3}) {
    SCOPED_TRACE(size);
    write_and_read(pair(), "cuda:0", "host", {{7, 5, size}}, 3);
  }
}

TEST_P(GpuToHost, AnyNumberOfScatteredBlocks) {
  for (const std::size_t count : {1, 100, 5000, 100000}) {
    SCOPED_TRACE(count);
    write_and_read(pair(), "cuda:0", "host", scattered(count, static_cast<unsigned>(count), 11), 11);
  }
}

TEST_P(GpuToHost, CopyEnginesAlone) {
  const auto made = own_pair(0);
  write_and_read(*made, "cuda:0", "host", {{7, 5, 5 * kMiB + 7}}, 3);
  write_and_read(*made, "cuda:0", "host", scattered(2000, 8, 1), 1);
}

TEST_P(GpuToHost, ManyAtOnceInBothDirections) {
  constexpr std::size_t kHalf = 24 * kMiB;
  constexpr std::uint64_t kTimes = 20;
  GpuPair& both = pair();
  const SideMemory mine(both.left, "cuda:0", 2 * kHalf);
  const SideMemory theirs(both.right, "host", 2 * kHalf);
  mine.fill(1);
  theirs.fill(2);
  const std::uint32_t id = theirs.imported_by(both.left);
  std::vector<Piece> out;
  std::vector<Piece> back;
  for (std::size_t at = 0; at + 70001 < kHalf; at += 70001) {
    out.push_back({mine.index(), id, at, theirs.address(at), 70000});
    back.push_back({mine.index(), id, kHalf + at, theirs.address(kHalf + at), 70000});
  }
  const std::uint64_t first = both.left.post("write", out, kTimes);
  both.left.post("read", back, kTimes);
  const Outcomes outcomes = both.left.outcomes(first, 2 * kTimes, kLimit);
  EXPECT_EQ(outcomes.good, 2 * kTimes) << outcomes.unfinished << " unfinished; " << outcomes.message;
  for (const Piece& piece : out) {
    ASSERT_TRUE(theirs.holds_pattern(piece.offset, piece.size, 1, piece.offset)) << "written";
    ASSERT_TRUE(theirs.holds_pattern(piece.offset + piece.size, 1, 2, piece.offset + piece.size)) << "behind";
  }
  for (const Piece& piece : back) {
    ASSERT_TRUE(mine.holds_pattern(piece.offset, piece.size, 2, piece.offset)) << "read";
    ASSERT_TRUE(mine.holds_pattern(piece.offset + piece.size, 1, 1, piece.offset + piece.size)) << "behind";
  }
}

TEST_P(GpuToHost, Messages) {
  for (const std::size_t size : {std::size_t{1}, std::size_t{70001}, 16 * kMiB}) {
    SCOPED_TRACE(size);
    GpuPair& both = pair();
    const SideMemory source(both.left, "cuda:0", size + 64, 3);
    const SideMemory target(both.right, "host", size + 64, 5);
    source.fill(size);
    target.set(kUntouched);
    const Piece out{source.index(), 0, 4, 0, size};
    const Piece into{target.index(), 0, 9, 0, size};
    const auto received = both.right.post("recv", {&into, 1});
    ASSERT_TRUE(is_ok(both.left.transfer("send", {&out, 1})));
    ASSERT_TRUE(is_ok(status_of(both.right.wait(received))));
    EXPECT_TRUE(target.holds_pattern(9, size, size, 4));
    EXPECT_TRUE(target.is_set(0, 9, kUntouched)) << "in front";
    EXPECT_TRUE(target.is_set(9 + size, target.extent() - 9 - size, kUntouched)) << "behind";
  }
}

// Its memory is nobody's business but its own: no context is made for what others copy.
TEST_P(GpuToHost, TheProcessWithHostMemoryUsesNoGpu) {
  write_and_read(pair(), "cuda:0", "host", scattered(100, 3, 0), 0);
  const auto contexts = pair().right.call("contexts");
  ASSERT_TRUE(is_ok(status_of(contexts)));
  EXPECT_EQ(*contexts, "");
}

TEST_P(GpuToHost, PeerKilledInTheMiddle) {
  constexpr std::size_t kSize = 64 * kMiB;
  constexpr std::uint64_t kTimes = 2000;
  const SidePlan plan{.transport = GetParam()};
  const auto both = own_pair();
  const SideMemory mine(both->left, "cuda:0", kSize);
  const SideMemory into(both->left, "cuda:0", kSize);
  const SideMemory theirs(both->right, "host", kSize);
  const std::uint32_t id = theirs.imported_by(both->left);
  mine.fill(1);
  const Piece out{mine.index(), id, 0, theirs.address(0), kSize};
  const Piece back{into.index(), id, 0, theirs.address(0), kSize};
  theirs.set(kUntouched);
  const std::uint64_t first = both->left.post("write", {&out, 1}, kTimes);
  both->left.post("read", {&back, 1}, kTimes);
  ASSERT_TRUE(eventually([&] { return !theirs.is_set(0, kSize, kUntouched); })) << "no transfer has begun";
  both->right.kill();
  const Outcomes outcomes = both->left.outcomes(first, 2 * kTimes, plan.keepalive + kMargin);
  EXPECT_EQ(outcomes.unfinished, 0U) << "after " << (plan.keepalive + kMargin).count() << " ms";
  EXPECT_GT(outcomes.bad, 0U) << "none was under way when the peer died";
  EXPECT_EQ(outcomes.good + outcomes.bad, 2 * kTimes);
  EXPECT_EQ(outcomes.codes, "peer_gone") << outcomes.message;
  EXPECT_TRUE(mine.holds_pattern(0, kSize, 1, 0));

  // The survivor works on with a new peer.
  Side other(plan);
  const SideMemory fresh(other, "host", kSize, 1);
  connect(both->left, other);
  const Piece again{mine.index(), fresh.imported_by(both->left), 0, fresh.address(1), kSize};
  ASSERT_TRUE(is_ok(both->left.transfer("write", {&again, 1})));
  EXPECT_TRUE(fresh.holds_pattern(1, kSize, 1, 0));
}

TEST_P(GpuToHost, MemoryThatWasFreedIsRefusedAndTheRestGoesOn) {
  constexpr std::size_t kSize = 16 * kMiB;
  constexpr std::uint64_t kTimes = 20;
  GpuPair& both = pair();
  const SideMemory kept(both.left, "cuda:0", kSize);
  const SideMemory freed(both.left, "cuda:0", kSize);
  const SideMemory theirs(both.right, "host", kSize);
  kept.fill(7);
  const std::uint32_t id = theirs.imported_by(both.left);
  const Piece from_kept{kept.index(), id, 0, theirs.address(0), kSize};
  const Piece from_freed{freed.index(), id, 0, theirs.address(0), kSize};
  ASSERT_TRUE(is_ok(status_of(both.left.call(fmt::format("free_only {}", freed.index())))));
  const std::uint64_t bad = both.left.post("write", {&from_freed, 1}, kTimes);
  both.left.post("read", {&from_freed, 1}, kTimes);
  both.left.post("write", {&from_kept, 1}, kTimes);
  const Outcomes outcomes = both.left.outcomes(bad, 2 * kTimes, kLimit);
  EXPECT_EQ(outcomes.bad, 2 * kTimes);
  EXPECT_EQ(outcomes.codes, "not_found") << outcomes.message;
  EXPECT_EQ(both.left.outcomes(bad + 2 * kTimes, kTimes, kLimit).good, kTimes);
  EXPECT_TRUE(theirs.holds_pattern(0, kSize, 7, 0));
}

}  // namespace
}  // namespace p2p::testing
