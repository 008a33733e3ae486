// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "device/unpacker.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "drivers/cuda/device.h"
#include "drivers/cuda/memory.h"

namespace p2p::device {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

std::shared_ptr<Unpacker> open(int device, const Unpacker::Limits& limits) {
  auto unpacker = Unpacker::open(device, limits);
  EXPECT_TRUE(unpacker) << unpacker.error().message;
  return std::move(*unpacker);
}

/// A channel's receive: two pieces of `source` that change places in `target`.
struct Receive {
  std::vector<std::byte> source;
  std::vector<std::byte> target;
  std::shared_ptr<Unpacker::Receive> handed = std::make_shared<Unpacker::Receive>();

  Receive(std::size_t size, int seed) : source(size), target(size) {
    for (std::size_t i = 0; i < size; ++i) source[i] = static_cast<std::byte>(1 + (i * 7 + seed) % 250);
    const std::size_t half = size / 2;
    handed->copies = {{source.data(), target.data() + (size - half), half},
                      {source.data() + half, target.data(), size - half}};
  }
  bool right() const {
    const std::size_t half = source.size() / 2;
    return std::memcmp(target.data() + (source.size() - half), source.data(), half) == 0 &&
           std::memcmp(target.data(), source.data() + half, source.size() - half) == 0;
  }
  bool untouched() const { return target == std::vector<std::byte>(target.size()); }
};

bool ends(Unpacker& unpacker, const Unpacker::Receive& receive) {
  const auto deadline = Clock::now() + 30s;
  while (!receive.finished() && Clock::now() < deadline) unpacker.advance();
  return receive.finished();
}

TEST(Unpacker, OneLaunchTakesWhatAllChannelsHaveHandedIn) {
  const auto unpacker = open(-1, {.launches = 1});
  std::vector<Receive> channels;
  for (int channel = 0; channel < 5; ++channel) channels.emplace_back(1000 + channel, channel);
  for (Receive& receive : channels) {
    unpacker->add(receive.handed);
    EXPECT_FALSE(receive.handed->finished());
    EXPECT_TRUE(receive.untouched());
  }
  unpacker->advance();
  for (const Receive& receive : channels) {
    EXPECT_TRUE(receive.handed->finished());
    EXPECT_TRUE(receive.handed->status());
    EXPECT_TRUE(receive.right());
  }
  EXPECT_EQ(unpacker->counts().receives, 5U);
  EXPECT_EQ(unpacker->counts().launches, 1U);
}

TEST(Unpacker, ALaunchHasRoomForSoManyCopies) {
  const auto unpacker = open(-1, {.launches = 1});
  std::vector<std::byte> source(1), target(4 * Unpacker::kLaunchBlocks);
  std::vector<std::shared_ptr<Unpacker::Receive>> receives;
  for (std::size_t index = 0; index < 4; ++index) {
    receives.push_back(std::make_shared<Unpacker::Receive>());
    for (std::size_t i = 0; i < Unpacker::kLaunchBlocks * 2 / 5; ++i) {
      receives.back()->copies.push_back({source.data(), &target[index * Unpacker::kLaunchBlocks + i], 1});
    }
    unpacker->add(receives.back());
  }
  unpacker->advance();
  for (const auto& receive : receives) EXPECT_TRUE(receive->finished());
  EXPECT_EQ(unpacker->counts().launches, 2U);
}

TEST(Unpacker, ChannelsOfManyThreads) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 300;
  const auto unpacker = open(-1, {.launches = 2});
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int round = 0; round < kRounds; ++round) {
        std::vector<Receive> receives;
        for (int i = 0; i < 3; ++i) receives.emplace_back(100 + 997 * i, thread + round + i);
        for (Receive& receive : receives) unpacker->add(receive.handed);
        for (Receive& receive : receives) {
          if (!ends(*unpacker, *receive.handed) || !receive.right()) ++wrong;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(unpacker->counts().receives, std::uint64_t{kThreads} * kRounds * 3);
  EXPECT_LE(unpacker->counts().launches, unpacker->counts().receives);
}

TEST(Unpacker, AChannelThatEndsTakesItsReceivesBack) {
  const auto unpacker = open(-1, {.launches = 1});
  Receive first(1000, 1), gone(1000, 2), last(1000, 3);
  for (Receive* receive : {&first, &gone, &last}) unpacker->add(receive->handed);
  unpacker->withdraw(*gone.handed);
  unpacker->advance();
  EXPECT_TRUE(first.right());
  EXPECT_TRUE(last.right());
  EXPECT_FALSE(gone.handed->finished());
  EXPECT_TRUE(gone.untouched());
}

TEST(Unpacker, NothingIsTouchedAfterAReceiveWasTakenBack) {
  const auto unpacker = open(-1, {.launches = 1});
  for (int round = 0; round < 20; ++round) {
    Receive receive(std::size_t{4} << 20, round);
    unpacker->add(receive.handed);
    std::thread other([&] { unpacker->advance(); });
    unpacker->withdraw(*receive.handed);
    const auto then = receive.target;
    other.join();
    EXPECT_EQ(receive.target, then);
    EXPECT_TRUE(receive.right() || receive.untouched());
  }
}

TEST(UnpackerOpen, SaysWhyThereIsNone) {
  if (cuda::available()) GTEST_SKIP() << "there is a CUDA device";
  const auto unpacker = Unpacker::open(0, {});
  ASSERT_FALSE(unpacker);
  EXPECT_EQ(unpacker.error().code, ErrorCode::kUnavailable);
}

class UnpackerOnDevice : public ::testing::Test {
 protected:
  static constexpr std::size_t kBytes = std::size_t{1} << 20;
  static constexpr std::size_t kPart = 5000;
  static constexpr std::size_t kParts = 6;

  void SetUp() override {
    if (const auto available = cuda::available(); !available) GTEST_SKIP() << available.error().message;
    memory_ = *cuda::DeviceBuffer::allocate(0, kBytes, true);
    std::vector<std::byte> bytes(kParts * kPart, std::byte{9});
    ASSERT_TRUE(cuda::copy_now(memory_.data(), bytes.data(), bytes.size()));
    for (std::size_t i = 0; i < kParts; ++i) {
      receives_.push_back(std::make_shared<Unpacker::Receive>());
      receives_.back()->copies = {{memory_.data() + i * kPart, target(i), kPart}};
    }
  }
  std::byte* target(std::size_t i) const { return memory_.data() + kBytes / 2 + i * kPart; }
  bool right(std::size_t i) const {
    std::vector<std::byte> got(kPart);
    EXPECT_TRUE(cuda::copy_now(got.data(), target(i), kPart));
    return got == std::vector<std::byte>(kPart, std::byte{9});
  }

  cuda::DeviceBuffer memory_;
  std::vector<std::shared_ptr<Unpacker::Receive>> receives_;
};

TEST_F(UnpackerOnDevice, OneLaunchForAll) {
  const auto unpacker = open(0, {.grid = {.ctas = 8}, .launches = 1});
  for (const auto& receive : receives_) unpacker->add(receive);
  for (const auto& receive : receives_) {
    ASSERT_TRUE(ends(*unpacker, *receive));
    EXPECT_TRUE(receive->status());
  }
  for (std::size_t i = 0; i < kParts; ++i) EXPECT_TRUE(right(i)) << i;
  EXPECT_EQ(unpacker->counts().launches, 1U);
}

TEST_F(UnpackerOnDevice, AReceiveThatCannotBeCopiedFailsAlone) {
  const auto unpacker = open(0, {.bulk_bytes = 0, .launches = 1});
  receives_[2]->copies.push_back(
      {memory_.data(), memory_.data(), std::uint64_t{1} << 40});  // beyond what there is
  for (const auto& receive : receives_) unpacker->add(receive);
  for (const auto& receive : receives_) ASSERT_TRUE(ends(*unpacker, *receive));
  for (std::size_t i = 0; i < kParts; ++i) {
    EXPECT_EQ(receives_[i]->status().has_value(), i != 2) << i;
    EXPECT_TRUE(i == 2 || right(i)) << i;
  }
  EXPECT_EQ(unpacker->counts().launches, 1 + kParts);
}

TEST_F(UnpackerOnDevice, AChannelThatEndsWaitsForItsLaunch) {
  const auto unpacker = open(0, {.grid = {.ctas = 8}, .launches = 1});
  unpacker->add(receives_[0]);
  unpacker->advance();
  unpacker->withdraw(*receives_[0]);
  EXPECT_TRUE(receives_[0]->finished());
  EXPECT_TRUE(right(0));
}

}  // namespace
}  // namespace p2p::device
