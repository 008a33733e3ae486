// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/channels/lane_state.h"

#include <gtest/gtest.h>

#include <array>

namespace p2p::engine::lane_state_test {
namespace {

using S = LaneState;
using E = LaneEvent;

// As in docs/channels.md: a row for each state, a column for each event.
TEST(LaneStateTest, EveryStateTakesEveryEvent) {
  struct Row {
    S from, share, offer, answer, up, give_up;
  };
  constexpr std::array<Row, 7> kTable{{
      {S::kUnshared, S::kExpected, S::kUnshared, S::kUnshared, S::kUnshared, S::kUnshared},
      {S::kExpected, S::kExpected, S::kOffered, S::kConnecting, S::kExpected, S::kGivenUpEarly},
      {S::kOffered, S::kOffered, S::kOffered, S::kConnecting, S::kOffered, S::kGivenUpEarly},
      {S::kConnecting, S::kConnecting, S::kConnecting, S::kConnecting, S::kServing, S::kGivenUp},
      {S::kServing, S::kServing, S::kServing, S::kServing, S::kServing, S::kGivenUp},
      {S::kGivenUpEarly, S::kGivenUpEarly, S::kGivenUpEarly, S::kGivenUp, S::kGivenUpEarly, S::kGivenUpEarly},
      {S::kGivenUp, S::kGivenUp, S::kGivenUp, S::kGivenUp, S::kGivenUp, S::kGivenUp},
  }};
  for (const Row& row : kTable) {
    SCOPED_TRACE(static_cast<int>(row.from));
    EXPECT_EQ(next_state(row.from, E::kShare), row.share);
    EXPECT_EQ(next_state(row.from, E::kOffer), row.offer);
    EXPECT_EQ(next_state(row.from, E::kAnswer), row.answer);
    EXPECT_EQ(next_state(row.from, E::kUp), row.up);
    EXPECT_EQ(next_state(row.from, E::kGiveUp), row.give_up);
  }
}

}  // namespace
}  // namespace p2p::engine::lane_state_test
