// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/channels/channel_place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <vector>

#include "engine/schedule/lane.h"
#include "engine/schedule/worker.h"
#include "support/plain_transport.h"

namespace p2p::engine {
namespace {

using namespace std::chrono_literals;
using p2p::testing::PlainAddress;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

Bytes plain(PlainAddress kind) { return {static_cast<std::byte>(kind)}; }

/// The second of two places of a connector.
class ChannelPlaceTest : public ::testing::Test {
 protected:
  ChannelPlaceTest() {
    for (int i = 0; i != 2; ++i) states_.add(ChannelKind::kFirst);
  }

  void TearDown() override {
    place_.clear();
    for (const auto& runner : ending_) runner->stop({ErrorCode::kCancelled, "the test ends"});
  }

  /// Puts one there by the place's number.
  ChannelPlace::Runner put() {
    const std::uint32_t number = place_.number();
    ChannelRunner::Setup setup{.rail = "plain",
                               .control = nullptr,
                               .channel = std::make_unique<p2p::testing::PlainChannel>(),
                               .report = [this, number](const Status&) { reported_.push_back(number); },
                               .number = number};
    const auto runner = std::make_shared<ChannelRunner>(*worker_, lane_, std::move(setup));
    EXPECT_EQ(place_.offer(runner), Bytes(1));
    return runner;
  }

  ChannelPlace::Runner renew() {
    place_.renew(place_.number() + 64);
    return put();
  }

  const std::unique_ptr<Worker> worker_ = *Worker::make(0ns);  // without a thread
  const std::shared_ptr<Lane> lane_ = std::make_shared<Lane>(Policy::spread({4096, 8}, 50us));
  ChannelStates states_{{.connector = true, .reopens = true, .keepalive = 1s}};
  ChannelPlace::Runners ending_;
  std::vector<std::uint32_t> reported_;
  ChannelPlace place_{1, states_, ending_};
};

TEST_F(ChannelPlaceTest, NumbersTellThePlaceAndHowManyWereThereBefore) {
  EXPECT_EQ(place_.index(), 1U);
  EXPECT_EQ(place_.number(), 1U);
  EXPECT_TRUE(place_.is_first());
  place_.renew(129);
  EXPECT_EQ(place_.index(), 1U);
  EXPECT_EQ(place_.number(), 129U);
  EXPECT_FALSE(place_.is_first());
}

TEST_F(ChannelPlaceTest, TheStateIsThatOfTheOneThatIsHere) {
  EXPECT_EQ(place_.state(), Connectivity::kAbsent);
  const auto runner = put();
  EXPECT_EQ(place_.runner(), runner);
  EXPECT_EQ(place_.state(), Connectivity::kOffered);
  EXPECT_FALSE(place_.connect(plain(PlainAddress::kRefused)));
  EXPECT_EQ(place_.state(), Connectivity::kOffered);
  EXPECT_TRUE(place_.connect(plain(PlainAddress::kGood)));
  EXPECT_EQ(place_.state(), Connectivity::kConnecting);
  place_.fail();
  EXPECT_EQ(place_.state(), Connectivity::kBackoff);
  EXPECT_EQ(place_.runner(), nullptr);
  EXPECT_THAT(ending_, ElementsAre(runner));
  EXPECT_EQ(states_.state(0), Connectivity::kAbsent) << "another place";
}

TEST_F(ChannelPlaceTest, ThoseBeforeAreFoundUntilTheyHaveEnded) {
  const auto before = put();
  const auto after = renew();
  EXPECT_EQ(place_.runner(), after);
  EXPECT_EQ(place_.find(1), before);
  EXPECT_EQ(place_.find(65), after);
  EXPECT_EQ(place_.find(129), nullptr);
  EXPECT_THAT(ending_, IsEmpty());
  for (int i = 0; i != 2; ++i) place_.end_retired(1);
  EXPECT_EQ(place_.find(1), nullptr);
  EXPECT_THAT(ending_, ElementsAre(before));
  place_.end_retired(65);
  EXPECT_EQ(place_.find(65), after) << "it is here";
}

TEST_F(ChannelPlaceTest, TheOldestIsStoppedWhenManyAreAtTheirEnd) {
  const auto oldest = put();
  for (int i = 0; i != 4; ++i) renew();
  EXPECT_THAT(ending_, IsEmpty());
  renew();
  EXPECT_THAT(ending_, ElementsAre(oldest));
}

TEST_F(ChannelPlaceTest, OneThatIsDiscardedReportsNothing) {
  const Error over{ErrorCode::kCancelled, "over"};
  put();
  place_.discard();
  ending_.back()->stop(over);
  EXPECT_THAT(reported_, IsEmpty());
  renew();
  place_.drop();
  ending_.back()->stop(over);
  EXPECT_THAT(reported_, ElementsAre(65));
  place_.discard();
  place_.drop();
  EXPECT_EQ(ending_.size(), 2U) << "none was there";
}

TEST_F(ChannelPlaceTest, AllAreClearedTogether) {
  const auto before = put();
  const auto after = renew();
  ChannelPlace::Runners all;
  place_.add_to(all);
  EXPECT_THAT(all, ElementsAre(after, before));
  place_.clear();
  EXPECT_EQ(ending_, all);
  all.clear();
  place_.add_to(all);
  EXPECT_THAT(all, IsEmpty());
}

TEST_F(ChannelPlaceTest, OneComesBackOnceAfterALoss) {
  EXPECT_FALSE(place_.comes_back());
  place_.note_loss();
  place_.renew(65);
  EXPECT_TRUE(place_.comes_back());
  EXPECT_FALSE(place_.comes_back());
}

}  // namespace
}  // namespace p2p::engine
