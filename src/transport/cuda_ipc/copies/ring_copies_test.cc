// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Batches by way of a ring, with plain memory in place of GPUs: this side's copies and the peer's are done
// when the test says so.
#include "transport/cuda_ipc/copies/ring_copies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/error.h"
#include "transport/registration.h"

namespace p2p::cuda_ipc {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

Bytes pattern(std::size_t size, unsigned seed) {
  Bytes bytes(size);
  for (std::size_t i = 0; i != size; ++i) bytes[i] = static_cast<std::byte>((i * 2654435761U + seed) >> 13);
  return bytes;
}

constexpr std::size_t kLongLoads = kRingSlots / kMostSlots;

/// This side's copies, and a peer that copies what it is asked to.
class Copies : public RingCopies::Hands {
 public:
  Result<std::shared_ptr<RingSlots>> ring_for(const Segment& /*piece*/) override {
    if (!refusal.empty()) return fail(ErrorCode::kNotFound, "{}", refusal);
    return ring;
  }

  Result<bool> start(RingLoad& load) override {
    if (lists == 0) return false;
    if (!refusal.empty()) return fail(ErrorCode::kNotFound, "{}", refusal);
    --lists;
    for (const auto& piece : load.pieces) {
      EXPECT_GE(piece.at, load.slots.begin());
      EXPECT_LE(piece.at + piece.size, load.slots.begin() + load.slots.bytes());
      std::byte* const there = &lent[piece.at];
      const bool write = load.operation == Operation::kWrite;
      std::memcpy(write ? there : piece.local, write ? piece.local : there, piece.size);
    }
    started.push_back(load.number);
    return true;
  }

  bool finished(RingLoad& load, Status& status) override {
    if (!device_is_done) return false;
    std::erase(started, load.number);
    ++lists;
    status = outcome;
    return true;
  }

  void ask(const RingLoad& load) override { asked.push_back(load); }

  /// The peer does what it was asked, in the order `from` says.
  void serve(RingCopies& copies, bool newest_first = false) {
    auto loads = std::exchange(asked, {});
    if (newest_first) std::reverse(loads.begin(), loads.end());
    for (const RingLoad& load : loads) {
      for (const auto& piece : load.pieces) {
        std::byte* const there = &lent[piece.at];
        std::byte* const mine = &theirs[piece.remote];
        const bool write = load.operation == Operation::kWrite;
        std::memcpy(write ? mine : there, write ? there : mine, piece.size);
      }
      EXPECT_TRUE(copies.answered(load.number, {}));
    }
  }

  std::shared_ptr<RingSlots> ring = std::make_shared<RingSlots>();
  Bytes lent = Bytes(kLentBytes);
  Bytes theirs;
  std::vector<RingLoad> asked;
  std::vector<std::uint64_t> started;
  std::string refusal;
  Status outcome;
  std::size_t lists = 16;
  bool device_is_done = true;
};

class RingCopiesTest : public ::testing::Test {
 protected:
  std::vector<Segment> segments(Bytes& mine, const std::vector<std::size_t>& sizes, std::size_t gap = 3) {
    std::vector<Segment> all;
    std::size_t at = 1;
    for (const std::size_t size : sizes) {
      all.push_back({&mine[at], at + 2, size, registration_.get(), key_.get()});
      at += size + gap;
    }
    return all;
  }

  static std::size_t extent(const std::vector<std::size_t>& sizes) {
    return std::accumulate(sizes.begin(), sizes.end(), std::size_t{16}) + 3 * sizes.size();
  }

  void run(RingCopies& copies, const RingJob& job, bool newest_first = false) {
    for (int i = 0; i != 100000 && !job.ended(); ++i) {
      copies.advance();
      hands_.serve(copies, newest_first);
    }
    ASSERT_TRUE(job.ended());
  }

  unsigned free_slots() {
    std::vector<RingSlots::Run> taken;
    while (const auto slot = hands_.ring->take(1)) taken.push_back(*slot);
    for (const RingSlots::Run& slot : taken) hands_.ring->give(slot);
    return static_cast<unsigned>(taken.size());
  }

  std::shared_ptr<Registration> registration_ = std::make_shared<Registration>(RegionInfo{});
  std::unique_ptr<RemoteKey> key_ = std::make_unique<RemoteKey>(RegionInfo{});
  Copies hands_;
};

TEST_F(RingCopiesTest, MoveEveryByteBothWaysAndNoOther) {
  const std::vector<std::vector<std::size_t>> lists{
      {1}, {kMiB}, {kMiB + 1}, {20 * kMiB + 5}, std::vector<std::size_t>(5000, 777), {3, 9 * kMiB, 1, 64}};
  for (const auto& sizes : lists) {
    for (const bool newest_first : {false, true}) {
      SCOPED_TRACE(sizes.size());
      RingCopies copies(hands_);
      Bytes mine = pattern(extent(sizes), 1);
      hands_.theirs = Bytes(mine.size() + 2);
      const auto pieces = segments(mine, sizes);
      RingJob write(Operation::kWrite, pieces);
      copies.add(write);
      run(copies, write, newest_first);
      EXPECT_TRUE(write.status());
      Bytes expected(hands_.theirs.size());
      for (const Segment& piece : pieces) std::memcpy(&expected[piece.remote], piece.local, piece.size);
      EXPECT_TRUE(hands_.theirs == expected);

      hands_.theirs = pattern(hands_.theirs.size(), 2);
      expected = Bytes(mine.size());
      std::ranges::fill(mine, std::byte{0});
      for (const Segment& piece : pieces) {
        std::memcpy(&expected[static_cast<std::size_t>(piece.local - mine.data())],
                    &hands_.theirs[piece.remote], piece.size);
      }
      RingJob read(Operation::kRead, pieces);
      copies.add(read);
      run(copies, read, newest_first);
      EXPECT_TRUE(read.status());
      EXPECT_TRUE(mine == expected);
      EXPECT_EQ(free_slots(), kRingSlots);
    }
  }
}

TEST_F(RingCopiesTest, BothSidesCopyAtTheSameTime) {
  RingCopies copies(hands_);
  Bytes mine(64 * kMiB + 16);
  hands_.theirs = Bytes(mine.size() + 16);
  RingJob job(Operation::kWrite, segments(mine, {64 * kMiB}));
  copies.add(job);
  hands_.device_is_done = false;
  EXPECT_TRUE(copies.advance());
  EXPECT_EQ(hands_.started.size(), kLongLoads) << "in all slots";
  EXPECT_FALSE(copies.advance());
  hands_.device_is_done = true;
  EXPECT_TRUE(copies.advance());
  EXPECT_EQ(hands_.asked.size(), kLongLoads);
  EXPECT_EQ(free_slots(), 0U) << "until the peer has answered";
  run(copies, job);
}

TEST_F(RingCopiesTest, ThePeerFillsTwoPartsOfABlockAtATime) {
  RingCopies copies(hands_);
  Bytes mine(kLentBytes + 16);
  hands_.theirs = Bytes(mine.size() + 16);
  RingJob job(Operation::kRead, segments(mine, {kLentBytes}));
  copies.add(job);
  while (copies.advance()) continue;
  EXPECT_EQ(hands_.asked.size(), 2U);
  run(copies, job);
}

TEST_F(RingCopiesTest, AShortOneDoesNotWaitForALongOne) {
  RingCopies copies(hands_);
  Bytes mine(2 * kLentBytes + 16);
  hands_.theirs = Bytes(mine.size() + 16);
  RingJob slow(Operation::kWrite, segments(mine, {2 * kLentBytes}));
  RingJob quick(Operation::kWrite, segments(mine, {64}));
  copies.add(slow);
  copies.advance();
  copies.add(quick);
  run(copies, quick);
  EXPECT_FALSE(slow.ended());
  run(copies, slow);
}

TEST_F(RingCopiesTest, AJobThatIsStoppedEndsOnceNothingIsUnderWay) {
  for (const Operation operation : {Operation::kWrite, Operation::kRead}) {
    RingCopies copies(hands_);
    Bytes mine(64 * kMiB + 16);
    hands_.theirs = pattern(mine.size() + 16, 3);
    RingJob job(operation, segments(mine, {64 * kMiB}));
    copies.add(job);
    copies.advance();
    job.stop();
    copies.advance();
    EXPECT_FALSE(job.ended()) << "the peer still copies";
    const std::size_t asked = hands_.asked.size();
    EXPECT_LE(asked, kLongLoads);
    hands_.serve(copies);
    copies.advance();
    ASSERT_TRUE(job.ended());
    ASSERT_FALSE(job.status());
    EXPECT_EQ(job.status().error().code, ErrorCode::kCancelled);
    EXPECT_TRUE(hands_.asked.empty());
    if (operation == Operation::kRead) {
      EXPECT_TRUE(mine == Bytes(mine.size())) << "nothing lands any more";
    }
    EXPECT_EQ(free_slots(), kRingSlots);
  }
}

TEST_F(RingCopiesTest, WhatThePeerRefusesFailsTheJobAlone) {
  RingCopies copies(hands_);
  Bytes mine(64 * kMiB + 16);
  hands_.theirs = Bytes(mine.size() + 16);
  RingJob job(Operation::kWrite, segments(mine, {64 * kMiB}));
  copies.add(job);
  copies.advance();
  copies.advance();
  ASSERT_EQ(hands_.asked.size(), kLongLoads);
  EXPECT_TRUE(copies.answered(hands_.asked[2].number, fail(ErrorCode::kNotFound, "it was taken back")));
  EXPECT_FALSE(copies.answered(hands_.asked[2].number, {})) << "once";
  EXPECT_FALSE(copies.answered(12345, {}));
  copies.advance();
  EXPECT_FALSE(job.ended());
  hands_.asked.erase(hands_.asked.begin() + 2);
  run(copies, job);
  EXPECT_EQ(job.status().error().message, "it was taken back");
  RingJob next(Operation::kWrite, segments(mine, {5}));
  copies.add(next);
  run(copies, next);
  EXPECT_TRUE(next.status());
}

TEST_F(RingCopiesTest, WaitForListsAndForSlots) {
  RingCopies copies(hands_);
  Bytes mine = pattern(4 * kMiB + 16, 5);
  hands_.theirs = Bytes(mine.size() + 16);
  hands_.lists = 0;
  RingJob job(Operation::kWrite, segments(mine, {4 * kMiB}));
  copies.add(job);
  EXPECT_FALSE(copies.advance());
  EXPECT_EQ(free_slots(), kRingSlots);
  hands_.lists = 1;
  run(copies, job);
  EXPECT_TRUE(std::equal(mine.begin() + 1, mine.begin() + 1 + 4 * kMiB, hands_.theirs.begin() + 3));
}

TEST_F(RingCopiesTest, MemoryThatIsGoneFailsThem) {
  for (const Operation operation : {Operation::kWrite, Operation::kRead}) {
    RingCopies copies(hands_);
    Bytes mine(kMiB);
    hands_.theirs = Bytes(kMiB + 16);
    RingJob job(operation, segments(mine, {1000}));
    copies.add(job);
    if (operation == Operation::kRead) copies.advance();
    hands_.refusal = "its memory was freed";
    run(copies, job);
    hands_.refusal.clear();
    ASSERT_FALSE(job.status());
    EXPECT_EQ(job.status().error().code, ErrorCode::kNotFound);
    EXPECT_EQ(free_slots(), kRingSlots);
  }
}

TEST_F(RingCopiesTest, ListsOfShortBlocksHaveALoadInEachSlot) {
  RingCopies copies(hands_);
  const std::vector<std::size_t> sizes(16 * kMiB / 4096, 4096);
  Bytes mine = pattern(extent(sizes), 6);
  hands_.theirs = Bytes(mine.size() + 16);
  std::deque<RingJob> jobs;
  for (int i = 0; i != 4; ++i) copies.add(jobs.emplace_back(Operation::kWrite, segments(mine, sizes)));
  copies.advance();
  copies.advance();
  EXPECT_EQ(hands_.asked.size(), kRingSlots);
  for (RingJob& job : jobs) run(copies, job);
}

TEST_F(RingCopiesTest, ALongLoadTakesWhatShortOnesLeave) {
  RingCopies copies(hands_);
  std::vector<RingSlots::Run> held;
  while (const auto slot = hands_.ring->take(1)) held.push_back(*slot);
  for (const RingSlots::Run& slot : held) {
    if (slot.first % 3 != 0) hands_.ring->give(slot);  // two side by side are the most
  }
  Bytes mine = pattern(64 * kMiB + 16, 7);
  hands_.theirs = Bytes(mine.size() + 16);
  RingJob job(Operation::kWrite, segments(mine, {64 * kMiB}));
  copies.add(job);
  copies.advance();
  copies.advance();
  ASSERT_EQ(hands_.asked.size(), kRingSlots / 3);
  for (const RingLoad& load : hands_.asked) EXPECT_EQ(load.slots.count, 2U);
  run(copies, job);
  EXPECT_TRUE(job.status());
  EXPECT_TRUE(std::equal(mine.begin() + 1, mine.begin() + 1 + 64 * kMiB, hands_.theirs.begin() + 3));
}

// Which else would take each slot again as soon as it is free.
TEST_F(RingCopiesTest, TwoChannelsShareTheSlots) {
  RingCopies one(hands_);
  RingCopies other(hands_);
  Bytes mine(2 * kLentBytes + 16);
  hands_.theirs = Bytes(mine.size() + 16);
  RingJob first(Operation::kWrite, segments(mine, {2 * kLentBytes}));
  RingJob second(Operation::kWrite, segments(mine, {2 * kLentBytes - kMiB}));
  one.add(first);
  one.advance();
  one.advance();
  EXPECT_EQ(hands_.asked.size(), kLongLoads);
  other.add(second);
  other.advance();
  EXPECT_EQ(free_slots(), 0U);
  hands_.serve(one);
  one.advance();
  EXPECT_EQ(free_slots(), kRingSlots) << "the other comes first";
  other.advance();
  EXPECT_EQ(free_slots(), kRingSlots / 2) << "and leaves half";
  one.advance();
  EXPECT_EQ(free_slots(), 0U);
  other.advance();
  one.advance();
  EXPECT_EQ(hands_.asked.size(), kLongLoads);
}

TEST_F(RingCopiesTest, ManyChannelsTakeTurns) {
  Bytes mine(2 * kLentBytes + 16);
  hands_.theirs = Bytes(mine.size() + 16);
  for (const unsigned count : {kRingSlots / kMostSlots + 1, kRingSlots - 1, kRingSlots + 3}) {
    hands_.ring = std::make_shared<RingSlots>();
    std::deque<RingCopies> channels;
    std::deque<RingJob> jobs;
    for (unsigned i = 0; i != count; ++i) {
      channels.emplace_back(hands_).add(
          jobs.emplace_back(Operation::kWrite, segments(mine, {2 * kLentBytes})));
    }
    std::set<RingJob*> served;
    for (int round = 0; round != 1000 && served.size() != jobs.size(); ++round) {
      for (RingCopies& channel : channels) {
        channel.advance();
        for (const RingLoad& load : std::exchange(hands_.asked, {})) {
          served.insert(load.job);
          EXPECT_TRUE(channel.answered(load.number, {}));
        }
      }
    }
    EXPECT_EQ(served.size(), jobs.size());
    for (const RingJob& job : jobs) EXPECT_FALSE(job.ended()) << "while others had none, of " << count;
  }
}

// A channel that ends while the peer may copy.
TEST_F(RingCopiesTest, SlotsThatThePeerMayStillUseAreNeverUsedAgain) {
  Bytes mine(64 * kMiB + 16);
  hands_.theirs = Bytes(mine.size() + 16);
  RingJob job(Operation::kWrite, segments(mine, {64 * kMiB}));
  {
    RingCopies copies(hands_);
    copies.add(job);
    copies.advance();
    copies.advance();
  }
  EXPECT_EQ(free_slots(), 0U);
  EXPECT_TRUE(hands_.ring->lost());
  EXPECT_FALSE(hands_.ring->whole());
  RingCopies copies(hands_);
  RingJob next(Operation::kWrite, segments(mine, {5}));
  copies.add(next);
  copies.advance();
  ASSERT_TRUE(next.ended());
  EXPECT_EQ(next.status().error().code, ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace p2p::cuda_ipc
