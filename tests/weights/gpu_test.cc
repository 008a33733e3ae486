// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Weights in the memory of GPUs, of the host, and of both: every byte against a model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <random>
#include <string>
#include <vector>

#include "hardware/gpu_memory.h"
#include "weights/cast.h"

namespace p2p::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class WeightsOnGpus : public ::testing::Test {
 protected:
  void SetUp() override {
    if (gpu_count() == 0) GTEST_SKIP() << "no GPU";
    const std::string far = gpu_count() > 1 ? "1" : "0";
    kinds_ = {"cuda:0", "cuda:" + far, "host", "mixed:0", "mixed:" + far, "mapped:" + far, "pooled:0"};
  }
  const std::string& kind(std::mt19937_64& dice) const { return kinds_[dice() % kinds_.size()]; }
  const std::string& far() const { return kinds_[1]; }

  std::vector<std::string> kinds_;
};

TEST_F(WeightsOnGpus, EveryByteOfRandomShardingsArrivesInAnyMemory) {
  for (int seed = 1; seed <= seeds(3); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto number = static_cast<std::uint64_t>(seed);
    std::mt19937_64 dice(number);
    const Cast cast{number};
    auto publisher = cast.publisher(number % 3, seed == 1 ? "cuda:0" : kind(dice));
    ASSERT_EQ(publisher.call("publish 7"), "ok ");
    std::vector<WeightsMember> subscribers;
    for (const std::uint64_t cut : {1, 1, 1, 2}) {  // two classes
      subscribers.push_back(cast.subscriber(100 * number + cut, {publisher.place()}, kind(dice)));
    }
    for (WeightsMember& member : subscribers) member.begin("stage 7");
    for (WeightsMember& member : subscribers) EXPECT_GT(staged(member.finish()).bytes, 0);
    EXPECT_EQ(publisher.call("copies 7 4"), "ok ");
    for (WeightsMember& member : subscribers) EXPECT_EQ(member.call("commit"), "ok 7");
    ASSERT_EQ(publisher.call("publish 8"), "ok ");
    for (WeightsMember& member : subscribers) member.begin("again 8");
    for (WeightsMember& member : subscribers) staged(member.finish());
  }
}

TEST_F(WeightsOnGpus, SurvivorsOfAKilledRelayGetAll) {
  for (int seed = 1; seed <= seeds(2); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 dice(static_cast<std::uint64_t>(seed));
    const Cast cast{static_cast<std::uint64_t>(seed), 16 << 10};
    auto publisher = cast.publisher(1, "cuda:0");
    ASSERT_EQ(publisher.call("publish 1"), "ok ");
    std::vector<WeightsMember> subscribers;
    for (int i = 0; i < 4; ++i)
      subscribers.push_back(cast.subscriber(2, {publisher.place()}, i == 3 ? kind(dice) : far()));
    stage_while_one_is_killed(subscribers, dice);
  }
}

// Relays give on from their GPUs what nobody else has any more.
TEST_F(WeightsOnGpus, WithoutThePublisherOneCopyIsEnough) {
  const Cast cast;
  auto publisher = cast.publisher(1, "cuda:0");
  ASSERT_EQ(publisher.call("publish 1"), "ok ");
  auto first = cast.subscriber(2, {publisher.place()}, far());
  staged(first.call("stage 1"));
  publisher.process().kill_now();
  for (const char* const memory : {"cuda:0", "host"}) {
    auto late = cast.subscriber(2, {first.place()}, memory);
    EXPECT_EQ(staged(late.call("stage 1")).from_publisher, 0);
  }
}

// The publisher's is freed after each version, and its address likely given out again; the subscribers'
// stays.
TEST_F(WeightsOnGpus, VersionsFollowOneAnotherInMemoryThatIsNewOrTheSame) {
  const Cast cast;
  auto publisher = cast.publisher(1, "cuda:0");
  std::vector<WeightsMember> subscribers;
  for (int i = 0; i < 2; ++i) subscribers.push_back(cast.subscriber(2, {publisher.place()}, far()));
  for (const std::string version : {"1", "2", "3", "4"}) {
    for (WeightsMember& member : subscribers) member.begin("again " + version);
    ASSERT_EQ(publisher.call("publish " + version), "ok ");
    for (WeightsMember& member : subscribers) {
      EXPECT_EQ(staged(member.finish()).wrong, 0);
      EXPECT_EQ(member.call("commit"), "ok " + version);
    }
    ASSERT_EQ(publisher.call("withdraw " + version), "ok ");
  }
}

// The base and what is made of it lie beside each other or in the same memory, here and at the publisher.
TEST_F(WeightsOnGpus, DeltasMakeEveryByteInAnyMemory) {
  for (int seed = 1; seed <= seeds(3); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto number = static_cast<std::uint64_t>(seed);
    std::mt19937_64 dice(number);
    const Cast cast{number};
    auto publisher = cast.publisher(number % 3, seed == 1 ? "cuda:0" : kind(dice));
    ASSERT_EQ(publisher.call("publish 1"), "ok ");
    std::vector<WeightsMember> subscribers;
    for (const std::uint64_t cut : {1, 1, 2}) {
      subscribers.push_back(
          holder(cast, 100 * number + cut, publisher.place(), 500, subscribers.empty() ? far() : kind(dice)));
    }
    publish_deltas(publisher, subscribers);
  }
}

TEST_F(WeightsOnGpus, ABaseThatChangedIsFoundAndItsChunkComesWhole) {
  const Cast cast;
  auto publisher = cast.publisher(1, "cuda:0");
  ASSERT_EQ(publisher.call("publish 1"), "ok ");
  auto subscriber = holder(cast, 2, publisher.place(), 100, far());
  publish_delta_on_spoilt_base(cast, publisher, subscriber);
}

TEST_F(WeightsOnGpus, AChunkThatCameWrongComesAgainFromAnother) {
  const Cast cast;
  auto publisher = cast.publisher(1, "cuda:0");
  ASSERT_EQ(publisher.call("publish 1"), "ok ");
  auto relay = cast.subscriber(2, {publisher.place()}, far());
  staged(relay.call("stage 1"));
  ASSERT_EQ(relay.call("spoil"), "ok");
  auto second = cast.subscriber(2, {publisher.place()}, far());
  const Staged row = staged(second.call("stage 1"));
  EXPECT_EQ(row.wrong, 1);
  EXPECT_GT(row.from_publisher, 0);
  second.process().kill_now();
  ASSERT_EQ(publisher.call("spoil"), "ok");
  auto last = cast.subscriber(2, {publisher.place()}, far());
  EXPECT_THAT(last.call("stage 1"), AllOf(StartsWith("protocol"), HasSubstr("chunk 0 came wrong")));
}

}  // namespace
}  // namespace p2p::testing
