// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/channels/channel_maker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "support/plain_transport.h"
#include "wire/following.h"

namespace p2p::engine {
namespace {

using namespace std::chrono_literals;
using p2p::testing::PlainTransport;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr auto kFirst = ChannelKind::kFirst;
constexpr auto kDeferred = ChannelKind::kDeferred;
constexpr auto kSurplus = ChannelKind::kSurplus;

/// Two channels a rail. "east" has two spare ones, others one. The path's own rail is "east".
class Rails : public PlainTransport {
 public:
  Rails(Kind kind, std::vector<std::string> others)
      : PlainTransport("plain", kind), others_(std::move(others)) {}

  std::vector<Rail> rails(const PeerPath& path) const override {
    std::vector<Rail> rails{
        {.name = path.local_address == "10.0.0.1" ? "east" : "west", .address = path.local_address}};
    for (const std::string& other : others_) rails.push_back({.name = other, .address = other + "'s"});
    return rails;
  }
  unsigned spare_channels(const Rail& rail) const override { return rail.name == "east" ? 2 : 1; }
  Result<std::unique_ptr<Channel>> open_channel(const ChannelSetup& setup) override {
    told.push_back(setup);
    return PlainTransport::open_channel(setup);
  }

  std::vector<ChannelSetup> told;

 private:
  const std::vector<std::string> others_;
};

class ChannelMakerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    context_->reactor = *Reactor::start();
    for (unsigned i = 0; i != 2; ++i) context_->workers.push_back(*Worker::make(0ns));
  }

  ChannelMaker maker(PlainTransport::Kind kind, const std::vector<std::string>& others = {"north"}) {
    transport_ = std::make_shared<Rails>(kind, others);
    context_->regions = std::make_shared<RegionTable>(TransportList{{transport_}}, 1, 1s);
    return ChannelMaker({.context = context_,
                         .peer = {.path = {.local_address = "10.0.0.1", .remote_address = "10.0.0.2"}},
                         .send = [](const wire::Message&) {},
                         .make_message_port = [] { return nullptr; },
                         .report = [](std::uint32_t, const Status&) {}});
  }

  /// The rails of the first `count` channels, as the transport is told of them.
  std::vector<std::string> rails(const ChannelMaker& maker, std::uint32_t count) {
    std::vector<std::string> rails;
    for (std::uint32_t i = 0; i != count; ++i) {
      const auto made = maker.make(64 + i);
      EXPECT_TRUE(made);
      const Rail& told = transport_->told.back().rail;
      EXPECT_EQ(told.name, maker.rail(i));
      if (made) {
        EXPECT_EQ((*made)->number(), 64 + i);
        EXPECT_EQ((*made)->rail(), told.name);
        (*made)->stop({ErrorCode::kCancelled, "the test has seen it"});
      }
      rails.push_back(told.name + " " + told.address);
    }
    return rails;
  }

  const std::shared_ptr<Context> context_ = std::make_shared<Context>();
  std::shared_ptr<Rails> transport_;
};

TEST_F(ChannelMakerTest, SurplusChannelsComeLastAndRailsHaveThemInTurns) {
  ChannelMaker made = maker(PlainTransport::Kind::kGrows);
  EXPECT_THAT(made.plan(64), ElementsAre(kFirst, kFirst, kFirst, kFirst, kSurplus, kSurplus, kSurplus));
  EXPECT_THAT(rails(made, 7), ElementsAre("east 10.0.0.1", "east 10.0.0.1", "north north's", "north north's",
                                          "east 10.0.0.1", "north north's", "east 10.0.0.1"));
}

TEST_F(ChannelMakerTest, OnesThatWouldStayAreNotSurplus) {
  EXPECT_THAT(maker(PlainTransport::Kind::kStays).plan(64), ElementsAre(kFirst, kFirst, kFirst, kFirst));
}

TEST_F(ChannelMakerTest, TheFirstOfEachRailIsFollowedByOthers) {
  EXPECT_THAT(maker(PlainTransport::Kind::kFollows, {}).plan(64),
              ElementsAre(kFirst, kDeferred, kSurplus, kSurplus));
}

TEST_F(ChannelMakerTest, ThereAreNoMoreThanEitherSideAllows) {
  EXPECT_THAT(maker(PlainTransport::Kind::kGrows).plan(3), ElementsAre(kFirst, kFirst, kFirst));
  context_->options.max_channels = 2;
  EXPECT_THAT(maker(PlainTransport::Kind::kGrows).plan(3), ElementsAre(kFirst, kFirst));
  EXPECT_THAT(maker(PlainTransport::Kind::kGrows).plan_for(std::vector<Bytes>(3, Bytes(1))),
              ElementsAre(kFirst, kFirst));
}

TEST_F(ChannelMakerTest, ThePeersOfferSaysWhatEachIs) {
  const Bytes one(1);
  const auto plan_for = [&](const std::vector<Bytes>& offered) {
    return maker(PlainTransport::Kind::kFollows, {}).plan_for(offered);
  };
  EXPECT_THAT(plan_for({one, wire::following(), {}}), ElementsAre(kFirst, kDeferred, kSurplus));
  EXPECT_THAT(plan_for({one, {}, {}}), ElementsAre(kFirst, kSurplus, kSurplus));
  EXPECT_THAT(plan_for({one, one, one, {}}), ElementsAre(kFirst, kFirst, kSurplus, kSurplus))
      << "surplus here, and the peer knows such ones";
  EXPECT_THAT(plan_for({one, one, one, one}), ElementsAre(kFirst, kFirst))
      << "the peer has none that are opened later";
  EXPECT_THAT(plan_for({}), IsEmpty());
}

TEST_F(ChannelMakerTest, StallsAreToldWhereThereIsAnotherRail) {
  for (const bool several : {false, true}) {
    ChannelMaker made =
        several ? maker(PlainTransport::Kind::kRests) : maker(PlainTransport::Kind::kRests, {});
    made.plan(64);
    static_cast<void>(rails(made, 1));
    EXPECT_EQ(transport_->told.back().stalls != nullptr, several);
  }
}

// A name is changed where the path's rail is the only one.
TEST_F(ChannelMakerTest, ChannelsTakeTheSessionsNewPath) {
  ChannelMaker made = maker(PlainTransport::Kind::kStays);
  made.plan(64);
  made.moved({.local_address = "10.1.0.1", .remote_address = "10.1.0.2"});
  EXPECT_THAT(rails(made, 4),
              ElementsAre("east 10.1.0.1", "east 10.1.0.1", "north north's", "north north's"));
  EXPECT_EQ(transport_->told.back().path.remote_address, "10.1.0.2");

  ChannelMaker of_one = maker(PlainTransport::Kind::kStays, {});
  of_one.plan(64);
  of_one.moved({.local_address = "10.1.0.1", .remote_address = "10.1.0.2"});
  EXPECT_THAT(rails(of_one, 2), ElementsAre("west 10.1.0.1", "west 10.1.0.1"));
}

TEST_F(ChannelMakerTest, NamedInterfacesStay) {
  context_->options.interfaces = {"east"};
  ChannelMaker made = maker(PlainTransport::Kind::kStays, {});
  made.plan(64);
  made.moved({.local_address = "10.1.0.1", .remote_address = "10.1.0.2"});
  EXPECT_THAT(rails(made, 2), ElementsAre("east 10.0.0.1", "east 10.0.0.1"));
  EXPECT_EQ(transport_->told.back().path.local_address, "10.0.0.1");
}

}  // namespace
}  // namespace p2p::engine
