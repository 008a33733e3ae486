// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/session/replay_log.h"

#include <gtest/gtest.h>

#include "engine/session/outbox.h"

namespace p2p::engine {
namespace {

Bytes frame(unsigned number, std::size_t size = 10) { return Bytes(size, static_cast<std::byte>(number)); }

std::vector<unsigned> numbers(const ReplayLog& log, std::uint64_t handled) {
  std::vector<unsigned> found;
  const auto after = log.after(handled);
  if (!after) return {999};
  for (const Bytes& one : *after) found.push_back(std::to_integer<unsigned>(one.front()));
  return found;
}

TEST(ReplayLog, GivesWhatThePeerHasNotHandled) {
  ReplayLog log;
  for (unsigned i = 0; i != 5; ++i) log.add(frame(i));
  EXPECT_EQ(numbers(log, 0), (std::vector<unsigned>{0, 1, 2, 3, 4}));
  ASSERT_TRUE(log.confirm(2));
  EXPECT_EQ(numbers(log, 2), (std::vector<unsigned>{2, 3, 4}));
  EXPECT_EQ(numbers(log, 4), (std::vector<unsigned>{4}));
  EXPECT_EQ(numbers(log, 5), (std::vector<unsigned>{}));
  EXPECT_FALSE(log.after(1)) << "the peer had them, and they are not kept any more";
  EXPECT_FALSE(log.after(6));
}

TEST(ReplayLog, AnOldConfirmationChangesNothing) {
  ReplayLog log;
  for (unsigned i = 0; i != 5; ++i) log.add(frame(i));
  ASSERT_TRUE(log.confirm(4));
  ASSERT_TRUE(log.confirm(1));
  EXPECT_EQ(numbers(log, 4), (std::vector<unsigned>{4}));
}

TEST(ReplayLog, RefusesAConfirmationOfWhatWasNotSent) {
  ReplayLog log;
  log.add(frame(0));
  const Status confirmed = log.confirm(2);
  ASSERT_FALSE(confirmed);
  EXPECT_EQ(confirmed.error().code, ErrorCode::kProtocol);
}

TEST(ReplayLog, KeepsNothingBeyondItsBoundUntilThePeerHasCaughtUp) {
  ReplayLog log;
  log.keep(1000);
  for (unsigned i = 0; i != 3; ++i) log.add(frame(i, 300));
  EXPECT_EQ(numbers(log, 0), (std::vector<unsigned>{0, 1, 2}));
  log.add(frame(3, 300));
  for (std::uint64_t handled = 0; handled != 4; ++handled) EXPECT_FALSE(log.after(handled));
  log.add(frame(4, 300));
  ASSERT_TRUE(log.confirm(1));
  EXPECT_FALSE(log.after(1));
  EXPECT_EQ(numbers(log, 4), (std::vector<unsigned>{4}));
  ASSERT_TRUE(log.confirm(4));
  EXPECT_EQ(numbers(log, 4), (std::vector<unsigned>{4}));
}

TEST(ReplayLog, KeepsNothingAtAll) {
  ReplayLog log;
  log.add(frame(0));
  log.keep(0);
  log.add(frame(1));
  EXPECT_EQ(numbers(log, 2), (std::vector<unsigned>{}));
  EXPECT_FALSE(log.after(1));
}

// A peer that goes on says how much it has handled, also where its message of that was lost with the
// connection.
TEST(Outbox, WhatWasHandledBeforeABreakTakesNoRoomAfterIt) {
  Outbox outbox([] {});
  outbox.keep(1000);
  for (unsigned round = 0; round != 5; ++round) {
    SCOPED_TRACE(round);
    outbox.put(frame(round, 400));
    outbox.detach();
    ASSERT_TRUE(outbox.attach(round));
  }
}

}  // namespace
}  // namespace p2p::engine
