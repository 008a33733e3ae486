// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Weights between processes: every byte against a model, whoever is killed, joins late, leaves or lies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "weights/cast.h"

namespace p2p::testing {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(WeightsMove, EveryByteOfRandomShardingsArrives) {
  for (int seed = 1; seed <= seeds(4); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Cast cast{static_cast<std::uint64_t>(seed)};
    auto publisher = cast.publisher(static_cast<std::uint64_t>(seed) % 3);
    ASSERT_EQ(publisher.call("publish 7"), "ok ");
    std::vector<WeightsMember> subscribers;
    for (const std::uint64_t cut : {1, 1, 2}) {  // two classes
      subscribers.push_back(
          cast.subscriber(100 * static_cast<std::uint64_t>(seed) + cut, {publisher.place()}));
    }
    for (WeightsMember& member : subscribers) member.begin("stage 7");
    for (WeightsMember& member : subscribers) EXPECT_GT(staged(member.finish()).bytes, 0);
    EXPECT_EQ(publisher.call("copies 7 3"), "ok ");
    for (WeightsMember& member : subscribers) EXPECT_EQ(member.call("commit"), "ok 7");
  }
}

TEST(WeightsMove, TheNextVersionTakesItsPlace) {
  const Cast cast;
  auto publisher = cast.publisher();
  auto subscriber = cast.subscriber(2, {publisher.place()});
  ASSERT_EQ(publisher.call("publish 1"), "ok ");
  EXPECT_THAT(publisher.call("publish 1"), HasSubstr("published already"));
  EXPECT_THAT(subscriber.call("commit"), StartsWith("not_found"));
  staged(subscriber.call("stage 1"));
  ASSERT_EQ(subscriber.call("commit"), "ok 1");
  subscriber.begin("again 2");  // before there is one
  ASSERT_EQ(publisher.call("publish 2"), "ok ");
  staged(subscriber.finish());
  ASSERT_EQ(subscriber.call("commit"), "ok 2");
  ASSERT_EQ(publisher.call("publish 3"), "ok ");
  EXPECT_THAT(subscriber.call("stage 3"), AllOf(StartsWith("invalid_argument"), HasSubstr("in_place")));
  EXPECT_EQ(publisher.call("withdraw 3"), "ok ");
  EXPECT_THAT(publisher.call("withdraw 3"), StartsWith("not_found"));
}

// What is too long to be said to a peer with so little room for messages is read, or said in parts.
TEST(WeightsMove, MembersMayHaveLittleRoomForNotifications) {
  ASSERT_EQ(::setenv("UCCL_P2P_NOTIFICATION_BYTES", "4K", 1),
            0);  // NOLINT(concurrency-mt-unsafe): one thread
  const Cast cast{.tensors = 3, .chunk_bytes = 4 << 10};
  auto publisher = cast.publisher();
  auto first = cast.subscriber(2, {publisher.place()});
  auto second = cast.subscriber(2, {publisher.place()});
  ::unsetenv("UCCL_P2P_NOTIFICATION_BYTES");  // NOLINT(concurrency-mt-unsafe)
  ASSERT_EQ(publisher.call("publish 1"), "ok ");
  staged(first.call("stage 1"));
  staged(second.call("stage 1"));
}

TEST(WeightsMove, WhoJoinsLateTakesFromThoseWhoHaveIt) {
  const Cast cast;
  auto publisher = cast.publisher();
  ASSERT_EQ(publisher.call("publish 1"), "ok ");
  auto first = cast.subscriber(2, {publisher.place()});
  const Staged source = staged(first.call("stage 1"));
  EXPECT_EQ(source.from_publisher, source.bytes);
  auto second = cast.subscriber(2, {publisher.place()});
  EXPECT_LT(staged(second.call("stage 1")).from_publisher, source.bytes / 2);
  publisher.process().kill_now();
  auto third = cast.subscriber(2, {publisher.place(), second.place()});
  EXPECT_EQ(staged(third.call("stage 1")).from_publisher, 0);
  auto other = cast.subscriber(3, {second.place()});
  EXPECT_THAT(other.call("stage 1"), AllOf(StartsWith("invalid_argument"), HasSubstr("other shards")));
}

TEST(WeightsMove, ARefusalOfOneHoldsNobodyFromThePublisher) {
  const Cast cast;
  auto publisher = cast.publisher();
  ASSERT_EQ(publisher.call("publish 1"), "ok ");
  auto relay = cast.subscriber(2, {publisher.place()});
  staged(relay.call("stage 1"));
  publisher.process().stop();
  auto subscriber = cast.subscriber(3, {relay.place(), publisher.place()});
  ASSERT_EQ(subscriber.call("wait 1"), "ok");
  subscriber.begin("stage 1");
  auto later = cast.subscriber(3, {relay.place()});
  EXPECT_THAT(later.call("stage 1"), HasSubstr("other shards"));
  publisher.process().go_on();
  EXPECT_GT(staged(subscriber.finish()).from_publisher, 0);
}

/// By seed: four who may take a version of many chunks from its publisher.
void with_four(const std::function<void(std::vector<WeightsMember>&, std::mt19937_64&)>& then) {
  for (int seed = 1; seed <= seeds(4); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 dice(static_cast<std::uint64_t>(seed));
    const Cast cast{static_cast<std::uint64_t>(seed), 16 << 10};
    auto publisher = cast.publisher();
    ASSERT_EQ(publisher.call("publish 1"), "ok ");
    std::vector<WeightsMember> subscribers;
    for (int i = 0; i < 4; ++i) subscribers.push_back(cast.subscriber(2, {publisher.place()}));
    then(subscribers, dice);
  }
}

TEST(WeightsMove, SurvivorsOfAKilledRelayGetAll) { with_four(stage_while_one_is_killed); }

// It closes no connection, and says nothing.
TEST(WeightsMove, ARelayThatStandsStillHoldsNobody) {
  with_four([](std::vector<WeightsMember>& subscribers, std::mt19937_64& dice) {
    for (WeightsMember& member : subscribers) member.begin("stage 1");
    WeightsMember& still = subscribers[dice() % subscribers.size()];
    std::this_thread::sleep_for(std::chrono::microseconds(dice() % 150000));  // the moment, by seed
    still.process().stop();
    for (WeightsMember& member : subscribers) {
      if (&member != &still) staged(member.finish());
    }
    still.process().go_on();
    staged(still.finish());
  });
}

// What a class wants is read from the first that asks.
TEST(WeightsMove, WhoAsksFirstAndDiesHoldsUpNobodyBehind) {
  for (int seed = 1; seed <= seeds(4); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 dice(static_cast<std::uint64_t>(seed));
    const Cast cast;
    auto publisher = cast.publisher();
    ASSERT_EQ(publisher.call("publish 1"), "ok ");
    std::vector<WeightsMember> subscribers;
    for (int i = 0; i < 3; ++i) subscribers.push_back(cast.subscriber(2, {publisher.place()}));
    for (WeightsMember& member : subscribers) ASSERT_THAT(member.call("wait 1"), StartsWith("ok"));
    publisher.process().stop();
    subscribers[0].begin("stage 1");
    std::this_thread::sleep_for(std::chrono::microseconds(dice() % 50000));  // the moment, by seed
    subscribers[0].process().kill_now();
    for (int i = 1; i < 3; ++i) subscribers[i].begin("stage 1");
    publisher.process().go_on();
    for (int i = 1; i < 3; ++i) staged(subscribers[i].finish());
  }
}

TEST(WeightsMove, WithoutThePublisherOneCopyIsEnough) {
  const Cast cast{1, 16 << 10};
  auto publisher = cast.publisher();
  ASSERT_EQ(publisher.call("publish 1"), "ok ");
  std::vector<WeightsMember> subscribers;
  for (int i = 0; i < 3; ++i) subscribers.push_back(cast.subscriber(2, {publisher.place()}));
  for (WeightsMember& member : subscribers) member.begin("stage 1");
  ASSERT_EQ(publisher.call("copies 1 1"), "ok ");
  publisher.process().kill_now();
  for (WeightsMember& member : subscribers) staged(member.finish());
}

TEST(WeightsMove, AStageEndsWhereNobodyIsLeftWhoHasIt) {
  const Cast cast{1, 4 << 10};
  auto publisher = cast.publisher();
  ASSERT_EQ(publisher.call("publish 1"), "ok ");
  auto subscriber = cast.subscriber(2, {publisher.place()});
  EXPECT_EQ(subscriber.call("tell 1"), "come");
  publisher.process().kill_now();
  const std::string answer = subscriber.finish();
  EXPECT_THAT(answer, AnyOf(StartsWith("ok "), AllOf(StartsWith("peer_gone"), HasSubstr("nobody has"))));
}

TEST(WeightsMove, AChunkThatCameWrongComesAgainFromAnother) {
  const Cast cast;
  auto publisher = cast.publisher();
  ASSERT_EQ(publisher.call("publish 1"), "ok ");
  auto relay = cast.subscriber(2, {publisher.place()});
  staged(relay.call("stage 1"));
  ASSERT_EQ(relay.call("spoil"), "ok");
  auto second = cast.subscriber(2, {publisher.place()});
  const Staged row = staged(second.call("stage 1"));
  EXPECT_EQ(row.wrong, 1);
  EXPECT_GT(row.from_publisher, 0);
  second.process().kill_now();
  ASSERT_EQ(publisher.call("spoil"), "ok");
  auto last = cast.subscriber(2, {publisher.place()});
  EXPECT_THAT(last.call("stage 1"), AllOf(StartsWith("protocol"), HasSubstr("chunk 0 came wrong")));
  EXPECT_THAT(last.call("commit"), StartsWith("not_found"));
}

TEST(WeightsMove, TwoPublishersOfOneVersionAreRefused) {
  const Cast cast;
  auto one = cast.publisher(), other = cast.publisher();
  auto subscriber = cast.subscriber(2, {one.place(), other.place()});
  for (const std::uint64_t version : {2, 3}) ASSERT_EQ(one.call("publish " + text(version)), "ok ");
  ASSERT_EQ(subscriber.call("wait 3"), "ok");
  for (const std::uint64_t version : {2, 4}) ASSERT_EQ(other.call("publish " + text(version)), "ok ");
  ASSERT_EQ(subscriber.call("wait 4"), "ok");
  EXPECT_THAT(subscriber.call("stage 2"), AllOf(StartsWith("invalid_argument"), HasSubstr("two publishers")));
  staged(subscriber.call("stage 3"));
}

TEST(WeightsMove, DeltasGiveEveryByteOfRandomShardings) {
  for (int seed = 1; seed <= seeds(2); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Cast cast{static_cast<std::uint64_t>(seed)};
    auto publisher = cast.publisher(static_cast<std::uint64_t>(seed) % 3);
    ASSERT_EQ(publisher.call("publish 1"), "ok ");
    std::vector<WeightsMember> subscribers;
    for (const std::uint64_t cut : {1, 1, 2}) {
      subscribers.push_back(
          holder(cast, 100 * static_cast<std::uint64_t>(seed) + cut, publisher.place(), 500));
    }
    publish_deltas(publisher, subscribers);
  }
}

TEST(WeightsMove, DeltasAreGivenOnOnceThePublisherIsGone) {
  const Cast cast;
  auto publisher = cast.publisher();
  ASSERT_EQ(publisher.call("publish 1"), "ok ");
  auto first = holder(cast, 2, publisher.place());
  auto second = cast.subscriber(2, {publisher.place(), first.place()});
  staged(second.call("stage 1"));
  ASSERT_EQ(second.call("descend 2 1 100"), "ok");
  ASSERT_THAT(publisher.call("publish 2 1 100"), StartsWith("ok "));
  const Staged source = staged(first.call("beside 2"));
  EXPECT_EQ(source.from_deltas, source.bytes);
  publisher.process().kill_now();
  const Staged row = staged(second.call("beside 2"));
  EXPECT_EQ(row.from_deltas, row.bytes) << row.no_delta;
  EXPECT_EQ(row.delta_bytes, source.delta_bytes);
  EXPECT_EQ(row.from_publisher, 0);
}

TEST(WeightsMove, WhoLacksTheBaseGetsItWholeAndHoldsUpNobodysDeltas) {
  const Cast cast;
  auto publisher = cast.publisher();
  ASSERT_EQ(publisher.call("publish 1"), "ok ");
  auto with = holder(cast, 2, publisher.place());
  auto without = cast.subscriber(2, {publisher.place()});
  ASSERT_EQ(without.call("descend 2 1 100"), "ok");
  EXPECT_THAT(publisher.call("publish 3 7 100"), AllOf(StartsWith("not_found"), HasSubstr("version 7")));
  ASSERT_THAT(publisher.call("publish 2 1 100"), StartsWith("ok "));
  const Staged whole = staged(without.call("stage 2"));  // before the other in the chain
  EXPECT_EQ(whole.from_deltas, 0);
  EXPECT_THAT(whole.no_delta, HasSubstr("version 1, on which they are based, is not here"));
  const Staged row = staged(with.call("beside 2"));
  EXPECT_EQ(row.from_deltas, row.bytes) << row.no_delta;
}

TEST(WeightsMove, AVersionOfAnotherPublicationIsNoBase) {
  const Cast cast;
  auto one = cast.publisher(), other = cast.publisher();
  ASSERT_EQ(one.call("publish 1"), "ok ");
  auto subscriber = cast.subscriber(2, {one.place(), other.place()});
  staged(subscriber.call("stage 1"));
  ASSERT_EQ(subscriber.call("descend 2 1 100"), "ok");
  ASSERT_EQ(other.call("publish 1"), "ok ");
  ASSERT_THAT(other.call("publish 2 1 100"), StartsWith("ok "));
  const Staged row = staged(subscriber.call("beside 2"));
  EXPECT_EQ(row.from_deltas, 0);
  EXPECT_THAT(row.no_delta, HasSubstr("is not here as it was published"));
}

TEST(WeightsMove, WhereMostHasChangedChunksComeWhole) {
  const Cast cast;
  auto publisher = cast.publisher();
  ASSERT_EQ(publisher.call("publish 1"), "ok ");
  auto subscriber = holder(cast, 2, publisher.place(), 1);
  ASSERT_THAT(publisher.call("publish 2 1 1"), StartsWith("ok "));
  const Staged row = staged(subscriber.call("again 2"));
  EXPECT_EQ(row.delta_bytes, 0);
  EXPECT_THAT(row.no_delta, HasSubstr("less than half"));
}

TEST(WeightsMove, ABaseThatChangedIsFoundAndItsChunkComesWhole) {
  const Cast cast;
  auto publisher = cast.publisher();
  ASSERT_EQ(publisher.call("publish 1"), "ok ");
  auto subscriber = holder(cast, 2, publisher.place());
  publish_delta_on_spoilt_base(cast, publisher, subscriber);
}

}  // namespace
}  // namespace p2p::testing
