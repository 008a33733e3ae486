// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/message_ring.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <limits>
#include <thread>

#include "transport/transport.h"

namespace p2p {
namespace {

Bytes block_of(std::size_t size, std::size_t seed) {
  Bytes block(size);
  for (std::size_t i = 0; i < size; ++i) block[i] = static_cast<std::byte>(seed * 31 + i);
  return block;
}

// Both ends in one process, each with its own mapping, as two processes have.
class RingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    UniqueFd descriptor;
    auto mine = RingMemory::create(descriptor);
    ASSERT_TRUE(mine) << mine.error().message;
    mine_ = std::move(*mine);
    auto theirs = RingMemory::open(descriptor);
    ASSERT_TRUE(theirs) << theirs.error().message;
    theirs_ = std::move(*theirs);
    writer_ = RingWriter(mine_.direction(0));
    reader_ = RingReader(theirs_.direction(0));
  }

  // What a hostile process may change.
  Ring& ring() { return theirs_.direction(0); }

  RingMemory mine_;
  RingMemory theirs_;
  RingWriter writer_;
  RingReader reader_;
  Bytes block_;
};

TEST_F(RingTest, BlocksOfAllSizesComeAsTheyWereManyTimesAround) {
  std::size_t size = 1;
  for (std::size_t round = 0; round < 300; ++round) {
    size = (size * 7919 + round) % (kMaxMessageBlockBytes + 1);
    ASSERT_TRUE(writer_.write(block_of(size, round)).value_or(false)) << round;
    ASSERT_TRUE(reader_.read(block_).value_or(false)) << round;
    ASSERT_EQ(block_, block_of(size, round)) << round;
  }
  EXPECT_FALSE(reader_.read(block_).value_or(true));
}

TEST_F(RingTest, IsFullUntilTheReaderHasRead) {
  std::size_t count = 0;
  while (writer_.write(block_of(5000, count)).value_or(false)) ++count;
  EXPECT_EQ(count, kRingBytes / 5008);
  EXPECT_TRUE(reader_.read(block_).value_or(false));
  EXPECT_TRUE(writer_.write(block_of(5000, count)).value_or(false));
  EXPECT_FALSE(writer_.write(block_of(5000, count)).value_or(true));
  for (std::size_t i = 1; i <= count; ++i) {
    ASSERT_TRUE(reader_.read(block_).value_or(false));
    ASSERT_EQ(block_, block_of(5000, i));
  }
}

TEST_F(RingTest, OneWakeUpForAReaderThatRests) {
  EXPECT_TRUE(reader_.arm_events());
  EXPECT_TRUE(writer_.write(block_of(8, 1)).value_or(false));
  EXPECT_TRUE(writer_.wake_due());
  EXPECT_TRUE(writer_.write(block_of(8, 2)).value_or(false));
  EXPECT_FALSE(writer_.wake_due()) << "it is awake";
  EXPECT_FALSE(reader_.arm_events()) << "there is something";
  while (reader_.read(block_).value_or(false)) {
  }
  EXPECT_TRUE(reader_.arm_events());
  reader_.enter_polling();
  EXPECT_TRUE(writer_.write(block_of(8, 3)).value_or(false));
  EXPECT_FALSE(writer_.wake_due());
}

TEST_F(RingTest, AReaderThatRestsMissesNothing) {
  constexpr std::size_t kCount = 20000;
  std::atomic<std::uint32_t> wakes{0};
  std::thread writing([&] {
    for (std::size_t i = 0; i < kCount;) {
      if (!writer_.write(block_of(i % 200, i)).value_or(false)) {
        std::this_thread::yield();
        continue;
      }
      ++i;
      if (writer_.wake_due()) {
        wakes.fetch_add(1);
        wakes.notify_one();
      }
    }
  });
  std::uint32_t slept = 0;
  for (std::size_t i = 0; i < kCount;) {
    if (reader_.read(block_).value_or(false)) {
      ASSERT_EQ(block_, block_of(i % 200, i));
      ++i;
    } else if (reader_.arm_events()) {
      wakes.wait(slept++);  // for ever, if it were missed
    }
  }
  writing.join();
}

TEST_F(RingTest, CountsThatCannotBeAreErrors) {
  for (const std::uint64_t written :
       {std::uint64_t{kRingBytes + 8}, std::uint64_t{4}, std::numeric_limits<std::uint64_t>::max()}) {
    ring().written.store(written);
    const auto read = reader_.read(block_);
    ASSERT_FALSE(read) << written;
    EXPECT_EQ(read.error().code, ErrorCode::kProtocol);
  }
  for (const std::uint64_t read : {std::uint64_t{8}, std::numeric_limits<std::uint64_t>::max() / 2}) {
    ring().read.store(read);
    const auto written = writer_.write(block_of(8, 1));
    ASSERT_FALSE(written) << read;
    EXPECT_EQ(written.error().code, ErrorCode::kProtocol);
  }
}

TEST_F(RingTest, LengthsThatCannotBeAreErrors) {
  for (const std::uint32_t size : {std::uint32_t{9}, std::uint32_t{kMaxMessageBlockBytes + 1}, ~0U}) {
    std::memcpy(ring().bytes, &size, sizeof size);
    ring().written.store(16);
    const auto read = reader_.read(block_);
    ASSERT_FALSE(read) << size;
    EXPECT_EQ(read.error().code, ErrorCode::kProtocol);
  }
}

TEST_F(RingTest, TakesNoMemoryThatMayShrink) {
  const auto refused = [](const UniqueFd& descriptor) {
    const auto opened = RingMemory::open(descriptor);
    return !opened && opened.error().code == ErrorCode::kProtocol;
  };
  EXPECT_TRUE(refused(UniqueFd()));
  EXPECT_TRUE(refused(UniqueFd::of(::open, "/dev/zero", O_RDWR | O_CLOEXEC)));
  const UniqueFd memory = UniqueFd::of(::memfd_create, "test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(::ftruncate(memory.get(), 2 * sizeof(Ring)), 0);
  EXPECT_TRUE(refused(memory));
  ASSERT_EQ(::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SEAL), 0);
  EXPECT_TRUE(refused(memory));
  const UniqueFd small = UniqueFd::of(::memfd_create, "test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(::ftruncate(small.get(), sizeof(Ring)), 0);
  ASSERT_EQ(::fcntl(small.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  EXPECT_TRUE(refused(small));
}

}  // namespace
}  // namespace p2p
