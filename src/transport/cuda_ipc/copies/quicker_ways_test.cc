// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// When a peer's region is asked for to measure with; what comes of it is for machines with GPUs.
#include "transport/cuda_ipc/copies/quicker_ways.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <limits>

#include "transport/cuda_ipc/memory/mappings.h"

namespace p2p::cuda_ipc {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::seconds kSoon{20};

class QuickerWaysTest : public ::testing::Test {
 protected:
  PeerMemory region_of(std::uint64_t bytes) const {
    const RegionInfo info{.base = nullptr, .size = bytes, .place = {MemoryKind::kCuda, 0}};
    return {info, ExportedKey{.memory = SharedMemory{}}, kNoDevice, mappings_, false};
  }

  static constexpr int kNoDevice = std::numeric_limits<int>::max();
  const std::shared_ptr<Mappings> mappings_ = std::make_shared<Mappings>(Mappings::Limits{});
  device::Copiers copiers_{{.standby_ctas = 16}};
  PeerMemory region_ = region_of(std::uint64_t{64} << 20);
};

TEST_F(QuickerWaysTest, TheRegionIsAskedForOnceNothingIsCopied) {
  std::atomic<bool> busy{true};
  std::promise<bool> asked;
  QuickerWays ways(Options{}, copiers_);
  ways.note_begun();
  ways.find_out(0, region_, [&]() -> std::shared_ptr<const void> {
    asked.set_value(busy);
    return nullptr;
  });
  auto while_busy = asked.get_future();
  EXPECT_EQ(while_busy.wait_for(50ms), std::future_status::timeout);
  busy = false;
  ways.note_ended(1);
  ASSERT_EQ(while_busy.wait_for(kSoon), std::future_status::ready);
  EXPECT_FALSE(while_busy.get());
}

TEST_F(QuickerWaysTest, EndsWhileCopiesGoOn) {
  std::atomic<int> asked{0};
  {
    QuickerWays ways(Options{}, copiers_);
    ways.note_begun();
    ways.find_out(0, region_, [&]() -> std::shared_ptr<const void> {
      ++asked;
      return nullptr;
    });
  }
  EXPECT_EQ(asked, 0);
}

TEST_F(QuickerWaysTest, NothingIsAskedForWhereNothingIsToBeFound) {
  // Regions are taken up in their order: the last one is asked for after those that would have been.
  const auto asked_for = [&](const Options& options, const PeerMemory& region) {
    std::atomic<bool> asked{false};
    std::promise<void> last;
    QuickerWays ways(options, copiers_);
    ways.find_out(0, region, [&]() -> std::shared_ptr<const void> {
      asked = true;
      return nullptr;
    });
    ways.find_out(0, region_, [&]() -> std::shared_ptr<const void> {
      last.set_value();
      return nullptr;
    });
    const bool measures =
        last.get_future().wait_for(options.gpu_measure ? kSoon : 50ms) == std::future_status::ready;
    EXPECT_EQ(measures, options.gpu_measure);
    return asked.load();
  };
  EXPECT_TRUE(asked_for(Options{}, region_));
  EXPECT_FALSE(asked_for(Options{}, region_of(std::uint64_t{512} << 10)));
  Options options;
  options.gpu_measure = false;
  EXPECT_FALSE(asked_for(options, region_));
}

TEST_F(QuickerWaysTest, FixedSizesServeUntilSomethingIsKnown) {
  Options options;
  options.gpu_bulk_bytes = std::uint64_t{7} << 20;
  const QuickerWays ways(options, copiers_);
  EXPECT_EQ(ways.between(0, 1).bulk_bytes, options.gpu_bulk_bytes);
  EXPECT_EQ(ways.between(0, 1).standby_bytes, ways.with_host().standby_bytes);
  options.gpu_blocks = 0;
  EXPECT_EQ(QuickerWays(options, copiers_).between(0, 1).standby_bytes, 0U);
}

}  // namespace
}  // namespace p2p::cuda_ipc
