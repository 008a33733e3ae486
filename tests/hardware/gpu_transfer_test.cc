// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// GPU memory of two processes through the public API: whatever the size, the number of blocks and the
// alignment, the right bytes arrive and no others.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "gpu_memory.h"
#include "gpu_pair.h"
#include "support/bounds.h"
#include "support/peer.h"

namespace p2p::testing {
namespace {

class GpuTransfer : public GpuTest {};
P2P_OVER_GPUS(GpuTransfer);

class Blocks {
 public:
  Blocks(GpuPair& pair, const GpuConfig& config, std::size_t most)
      : pair_(pair),
        left_(pair.left, config.left_place(), most, kGuard),
        right_(pair.right, config.right_place(), most, kGuard),
        id_(right_.imported_by(pair.left)) {}

  /// Writes and reads one block off alignment by the given bytes.
  void check(std::size_t size, std::size_t left_off, std::size_t right_off) {
    SCOPED_TRACE(fmt::format("{} bytes, off by {} and {}", size, left_off, right_off));
    const std::size_t from = kGuard + left_off;
    const std::size_t to = kGuard + right_off;
    const Piece piece{left_.index(), id_, from, right_.address(to), size};
    left_.fill(size);
    right_.set(0, to + size + kGuard, kUntouched);
    ASSERT_TRUE(is_ok(pair_.left.transfer("write", {&piece, 1})));
    EXPECT_TRUE(right_.holds_pattern(to, size, size, from)) << "written";
    EXPECT_TRUE(right_.is_set(0, to, kUntouched)) << "in front";
    EXPECT_TRUE(right_.is_set(to + size, kGuard, kUntouched)) << "behind";
    left_.set(0, from + size + kGuard, kUntouched);
    ASSERT_TRUE(is_ok(pair_.left.transfer("read", {&piece, 1})));
    EXPECT_TRUE(left_.holds_pattern(from, size, size, from)) << "read";
    EXPECT_TRUE(left_.is_set(0, from, kUntouched)) << "in front";
    EXPECT_TRUE(left_.is_set(from + size, kGuard, kUntouched)) << "behind";
  }

 private:
  // What lies around the region; odd, so that its start is, too.
  static constexpr std::size_t kGuard = 4099;

  GpuPair& pair_;
  SideMemory left_;
  SideMemory right_;
  std::uint32_t id_;
};

TEST_P(GpuTransfer, OneBlockOfAnySize) {
  {
    Blocks blocks(pair(), config(), 6 * kMiB);
    for (const std::size_t size :
         {std::size_t{1}, std::size_t{3}, std::size_t{4095}, 64 * kKiB + 1, 5 * kMiB + 7}) {
      blocks.check(size, 1, 6);
    }
  }
  Blocks blocks(pair(), config(), 256 * kMiB + 16);
  blocks.check(256 * kMiB, 5, 2);
}

// Longer than a batch of any transport.
TEST_P(GpuTransfer, OneBlockOfMoreThanAGibibyte) {
  if (!widest()) GTEST_SKIP() << "done between two GPUs";
  Blocks blocks(pair(), config(), kGiB + 64);
  blocks.check(kGiB + 1, 3, 0);
}

TEST_P(GpuTransfer, AnyNumberOfScatteredBlocks) {
  for (const std::size_t count : {1, 100, 5000, 100000}) {
    SCOPED_TRACE(count);
    write_and_read(pair(), config().left_place(), config().right_place(),
                   scattered(count, static_cast<unsigned>(count), 11), 11);
  }
}

// What lies in rows on both sides, upwards and downwards, among blocks that do not.
TEST_P(GpuTransfer, BlocksInRows) {
  for (const std::size_t size : {1, 132, 576, 2112, 4096, 9217}) {
    SCOPED_TRACE(size);
    constexpr std::size_t kCount = 300;
    std::vector<Block> blocks = scattered(500, static_cast<unsigned>(size), 11);
    for (const bool down : {false, true}) {
      const std::size_t left = extent_of(blocks) + 5, right = left + 3;
      for (std::size_t i = 0; i != kCount; ++i) {
        const std::size_t place = down ? kCount - 1 - i : i;
        blocks.push_back({left + i * (size + 7), right + place * (size + 9), size});
      }
      blocks.push_back({extent_of(blocks) + 1, extent_of(blocks) + 1, 77});
    }
    write_and_read(pair(), config().left_place(), config().right_place(), blocks, 11);
  }
}

// With fewer multiprocessors, or none: the bytes are the same.
class GpuBlocks : public GpuTest {
 protected:
  void check(int blocks) {
    if (!widest()) GTEST_SKIP() << "done between two GPUs";
    const auto made = own_pair({.transport = config().transport, .blocks = blocks});
    const std::string left = config().left_place();
    const std::string right = config().right_place();
    write_and_read(*made, left, right, {{7, 5, 5 * kMiB + 7}}, 3);
    write_and_read(*made, left, right, scattered(2000, 8, 1), 1);
    write_and_read(*made, "host", right, scattered(300, 9, 1), 1);
    std::vector<Block> rows;
    for (std::size_t i = 0; i != 400; ++i) rows.push_back({1 + i * 100, 1 + (399 - i) * 90, 80});
    for (const std::string& place : {left, std::string("host")}) write_and_read(*made, place, right, rows, 1);
  }
};
P2P_OVER_GPUS(GpuBlocks);

TEST_P(GpuBlocks, CopyEnginesAlone) { check(0); }
TEST_P(GpuBlocks, FewThreadBlocks) { check(4); }

struct Ends {
  std::string from;
  std::string to;
};

/// What one side sends the other gets, and what its memory held beside that stays.
void check_message(Side& sender, Side& receiver, const Ends& ends, std::size_t size) {
  SCOPED_TRACE(fmt::format("{} bytes from {} to {}", size, ends.from, ends.to));
  constexpr std::size_t kRoom = 100;
  const SideMemory source(sender, ends.from, size + 64, 3);
  const SideMemory target(receiver, ends.to, size + kRoom, 5);
  source.fill(size + 1);
  target.set(kUntouched);
  const Piece out{source.index(), 0, 4, 0, size};
  const Piece into{target.index(), 0, 9, 0, size + kRoom - 4};
  const auto received = receiver.post("recv", {&into, 1});
  ASSERT_TRUE(is_ok(sender.transfer("send", {&out, 1})));
  const auto bytes = receiver.wait(received);
  ASSERT_TRUE(is_ok(status_of(bytes)));
  EXPECT_EQ(*bytes, size) << "of a receive with room for more";
  EXPECT_TRUE(target.holds_pattern(9, size, size + 1, 4));
  EXPECT_TRUE(target.is_set(0, 9, kUntouched)) << "in front";
  EXPECT_TRUE(target.is_set(9 + size, target.extent() - 9 - size, kUntouched)) << "behind";
}

TEST_P(GpuTransfer, MessagesToAndFromGpus) {
  std::vector<Ends> all{{config().left_place(), config().right_place()}, {"host", config().right_place()}};
  // To host memory there is no way but tcp.
  if (std::string(config().transport) == "tcp") all.push_back({config().left_place(), "host"});
  for (const Ends& ends : all) {
    for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{70001}, 16 * kMiB}) {
      check_message(pair().left, pair().right, ends, size);
    }
  }
  check_message(pair().right, pair().left, {config().right_place(), config().left_place()}, kMiB + 3);
}

/// What one side does at once in both directions: one large block and many small ones.
struct Work {
  // Four areas in each memory: what I write from, what I read into, what the peer writes to and reads from.
  static constexpr std::size_t kArea = 24 * kMiB;
  static constexpr std::size_t kSmall = 3 * 4096 + 1;

  static std::vector<Piece> pieces(const SideMemory& mine, std::uint32_t id, const SideMemory& theirs,
                                   std::size_t my_area, std::size_t their_area) {
    std::vector<Piece> all;
    const std::size_t large = 16 * kMiB + 1;
    const auto add = [&](std::size_t offset, std::size_t size) {
      all.push_back(
          {mine.index(), id, my_area * kArea + offset, theirs.address(their_area * kArea + offset), size});
    };
    add(0, large);
    for (std::size_t at = large + 2; at + kSmall < kArea; at += kSmall + 3) add(at, kSmall);
    return all;
  }

  static void expect_copied(const SideMemory& memory, std::size_t area, std::uint64_t seed,
                            std::size_t source_area, const std::vector<Piece>& pieces, std::size_t my_area) {
    const std::size_t last = pieces.back().offset + pieces.back().size - my_area * kArea;
    std::vector<std::byte> expected(last, kUntouched);
    for (const Piece& piece : pieces) {
      const std::size_t at = piece.offset - my_area * kArea;
      copy_pattern(std::span(expected).subspan(at, piece.size), seed, source_area * kArea + at);
    }
    EXPECT_TRUE(memory.holds(area * kArea, expected)) << "area " << area;
  }
};

TEST_P(GpuTransfer, WritesAndReadsOfBothSidesAtOnce) {
  enum Area : std::size_t { kWriteFrom, kReadInto, kWrittenTo, kReadFrom, kAreas };
  constexpr std::uint64_t kTimes = 20;
  GpuPair& both = pair();
  const SideMemory left(both.left, config().left_place(), kAreas * Work::kArea);
  const SideMemory right(both.right, config().right_place(), kAreas * Work::kArea);
  left.fill(1);
  right.fill(2);
  for (const SideMemory* memory : {&left, &right}) {
    memory->set(kReadInto * Work::kArea, 2 * Work::kArea, kUntouched);
  }
  const std::uint32_t right_id = right.imported_by(both.left);
  const std::uint32_t left_id = left.imported_by(both.right);
  const auto writes = Work::pieces(left, right_id, right, kWriteFrom, kWrittenTo);
  const auto reads = Work::pieces(left, right_id, right, kReadInto, kReadFrom);
  const std::uint64_t left_first = both.left.post("write", writes, kTimes);
  const std::uint64_t right_first =
      both.right.post("write", Work::pieces(right, left_id, left, kWriteFrom, kWrittenTo), kTimes);
  both.left.post("read", reads, kTimes);
  both.right.post("read", Work::pieces(right, left_id, left, kReadInto, kReadFrom), kTimes);
  for (const auto& [side, first] : {std::pair{&both.left, left_first}, std::pair{&both.right, right_first}}) {
    const Outcomes outcomes = side->outcomes(first, 2 * kTimes, kLimit);
    EXPECT_EQ(outcomes.good, 2 * kTimes) << outcomes.unfinished << " unfinished; " << outcomes.message;
  }
  Work::expect_copied(right, kWrittenTo, 1, kWriteFrom, writes, kWriteFrom);
  Work::expect_copied(left, kWrittenTo, 2, kWriteFrom, writes, kWriteFrom);
  Work::expect_copied(left, kReadInto, 2, kReadFrom, reads, kReadInto);
  Work::expect_copied(right, kReadInto, 1, kReadFrom, reads, kReadInto);
}

TEST_P(GpuTransfer, ManagedMemory) {
  const auto blocks = scattered(500, 21, 1);
  write_and_read(pair(), "managed", config().right_place(), blocks, 1);
  if (std::string(config().transport) == "tcp") {
    write_and_read(pair(), config().left_place(), "managed", blocks, 1);
    write_and_read(pair(), "managed", "managed", blocks, 1);
  }
}

/// All places in one list. Over "tcp", over what the engine chooses for each pair, and over "cma" to the only
/// place that it reaches.
class GpuMixedLists : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Over, GpuMixedLists, ::testing::Values("", "tcp", "cma"), [](const auto& parameter) {
  return std::string(*parameter.param == '\0' ? "best" : parameter.param);
});

TEST_P(GpuMixedLists, HostAndAllGpusInOneTransfer) {
  if (gpu_count() == 0) GTEST_SKIP() << "no CUDA device";
  std::vector<std::string> places{"host", "cuda:0"};
  if (gpu_count() > 1) places.emplace_back("cuda:1");
  const bool to_host = std::string(GetParam()) == "cma";
  const std::vector<std::string> far_places = to_host ? std::vector<std::string>{"host"} : places;
  GpuPair pair({.transport = GetParam()}, "cuda:0", far_places.back());
  constexpr std::size_t kSize = 9001;
  constexpr std::size_t kPitch = kSize + 7;
  constexpr std::size_t kRounds = 20;
  const std::size_t extent = places.size() * kRounds * kPitch;
  std::vector<SideMemory> left;
  std::vector<SideMemory> right;
  std::vector<std::uint32_t> ids;
  for (const std::string& place : places) left.emplace_back(pair.left, place, extent, 1);
  for (const std::string& place : far_places) {
    right.emplace_back(pair.right, place, extent, 1);
    ids.push_back(right.back().imported_by(pair.left));
  }
  // Block (from, to, round) lies at the slot of `to` on the left, and of `from` on the right.
  std::vector<Piece> pieces;
  const auto slot = [&](std::size_t other, std::size_t round) {
    return 1 + (other * kRounds + round) * kPitch;
  };
  for (std::size_t round = 0; round < kRounds; ++round) {
    for (std::size_t from = 0; from < places.size(); ++from) {
      for (std::size_t to = 0; to < far_places.size(); ++to) {
        pieces.push_back(
            {left[from].index(), ids[to], slot(to, round), right[to].address(slot(from, round)), kSize});
      }
    }
  }
  for (std::size_t i = 0; i < places.size(); ++i) left[i].fill(10 + i);
  for (const SideMemory& memory : right) memory.set(kUntouched);
  ASSERT_TRUE(is_ok(pair.left.transfer("write", pieces)));
  for (std::size_t to = 0; to < far_places.size(); ++to) {
    for (std::size_t from = 0; from < places.size(); ++from) {
      for (std::size_t round = 0; round < kRounds; ++round) {
        EXPECT_TRUE(right[to].holds_pattern(slot(from, round), kSize, 10 + from, slot(to, round)))
            << "written from " << places[from] << " to " << far_places[to];
        EXPECT_TRUE(right[to].is_set(slot(from, round) + kSize, kPitch - kSize, kUntouched));
      }
    }
    right[to].fill(20 + to);
  }
  for (const SideMemory& memory : left) memory.set(kUntouched);
  ASSERT_TRUE(is_ok(pair.left.transfer("read", pieces)));
  for (std::size_t from = 0; from < places.size(); ++from) {
    for (std::size_t to = 0; to < far_places.size(); ++to) {
      for (std::size_t round = 0; round < kRounds; ++round) {
        EXPECT_TRUE(left[from].holds_pattern(slot(to, round), kSize, 20 + to, slot(from, round)))
            << "read from " << far_places[to] << " into " << places[from];
      }
    }
  }
}

}  // namespace
}  // namespace p2p::testing
