// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/listen/strangers.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

namespace p2p::engine {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;

class StrangersTest : public ::testing::Test {
 protected:
  Strangers::Id come(const std::string& address, const std::string& name) {
    return strangers_.add(address, now_, [this, name](Strangers::Id) { gone_.push_back(name); });
  }
  void pass(milliseconds time) { now_ += time; }

  Strangers strangers_{{.all = 4, .of_one_address = 3}};
  Strangers::Clock::time_point now_ = Strangers::Clock::now();
  std::vector<std::string> gone_;
};

TEST_F(StrangersTest, TheOldestOfAnAddressGoes) {
  for (const char* name : {"a", "b", "c"}) come("1", name);
  pass(Strangers::kFirstBytes);
  come("1", "d");
  EXPECT_THAT(gone_, ElementsAre("a"));
  EXPECT_EQ(strangers_.size(), 3U);
  EXPECT_EQ(strangers_.refused(), 1U);
}

TEST_F(StrangersTest, OfThoseThatHadNoTimeTheOldestGoes) {
  const auto first = come("1", "a");
  strangers_.spoke(first, now_, [this](Strangers::Id) { gone_.emplace_back("a"); });
  for (const char* name : {"b", "c", "d", "e"}) come("1", name);
  EXPECT_THAT(gone_, ElementsAre("a", "b"));
}

TEST_F(StrangersTest, TheSilentGoBeforeThoseWhoSpoke) {
  const auto first = come("1", "a");
  for (const char* name : {"b", "c"}) come("1", name);
  strangers_.spoke(first, now_, [this](Strangers::Id) { gone_.emplace_back("a, which spoke"); });
  pass(Strangers::kProof);
  for (const char* name : {"d", "e"}) come("1", name);
  EXPECT_THAT(gone_, ElementsAre("b", "c"));
  for (const char* name : {"f", "g"}) {
    pass(Strangers::kFirstBytes);
    come("1", name);
  }
  EXPECT_THAT(gone_, ElementsAre("b", "c", "d", "e"));
}

TEST_F(StrangersTest, OneThatWasAnsweredStaysWhileOthersAreNot) {
  const auto first = come("1", "a");
  strangers_.spoke(first, now_, [this](Strangers::Id) { gone_.emplace_back("a"); });
  strangers_.answered(first, now_);
  for (const char* name : {"b", "c", "d", "e"}) come("1", name);
  EXPECT_THAT(gone_, ElementsAre("b", "c"));
  ASSERT_TRUE(strangers_.drop_one());
  ASSERT_TRUE(strangers_.drop_one());
  EXPECT_THAT(gone_, ElementsAre("b", "c", "d", "e"));
  ASSERT_TRUE(strangers_.drop_one());
  EXPECT_THAT(gone_, ElementsAre("b", "c", "d", "e", "a"));
}

TEST_F(StrangersTest, OfThoseThatWereAllAnsweredTheOldestGoes) {
  for (const char* name : {"a", "b", "c"}) {
    const auto id = come("1", name);
    strangers_.spoke(id, now_, [this, name](Strangers::Id) { gone_.emplace_back(name); });
    strangers_.answered(id, now_);
  }
  come("1", "d");
  EXPECT_THAT(gone_, ElementsAre("a"));
  pass(Strangers::kProof);
  come("1", "e");
  EXPECT_THAT(gone_, ElementsAre("a", "d")) << "silent, and its time is over";
  come("1", "f");
  EXPECT_THAT(gone_, ElementsAre("a", "d", "b")) << "answered, and its time is over";
}

TEST_F(StrangersTest, OneWhoSpokeGoesWhenItsTimeIsOver) {
  come("1", "a");
  pass(Strangers::kProof);
  for (const char* name : {"b", "c"}) {
    strangers_.spoke(come("1", name), now_ - Strangers::kProof,
                     [this, name](Strangers::Id) { gone_.emplace_back(name); });
  }
  come("1", "d");
  come("1", "e");
  come("1", "f");
  EXPECT_THAT(gone_, ElementsAre("a", "b", "c"));
}

TEST_F(StrangersTest, AFloodFromOneAddressPushesOutItselfAlone) {
  come("2", "lone");
  pass(milliseconds(1));
  for (const char* name : {"a", "b", "c"}) come("1", name);
  pass(Strangers::kFirstBytes);
  come("3", "another");
  EXPECT_THAT(gone_, ElementsAre("a"));
}

TEST_F(StrangersTest, WhoHasProvenItselfMakesRoom) {
  const auto first = come("1", "a");
  for (const char* name : {"b", "c"}) come("1", name);
  strangers_.remove(first);
  come("1", "d");
  EXPECT_TRUE(gone_.empty());
  strangers_.remove(first);  // known no more
  EXPECT_EQ(strangers_.size(), 3U);
}

TEST_F(StrangersTest, ForWantOfDescriptorsAnyoneGoes) {
  const auto first = come("1", "a");
  strangers_.spoke(first, now_, [this](Strangers::Id) { gone_.emplace_back("a"); });
  come("1", "b");
  EXPECT_TRUE(strangers_.drop_one());
  EXPECT_TRUE(strangers_.drop_one());
  EXPECT_FALSE(strangers_.drop_one());
  EXPECT_THAT(gone_, ElementsAre("b", "a"));
}

}  // namespace
}  // namespace p2p::engine
