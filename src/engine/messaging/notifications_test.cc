// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/messaging/notifications.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/memory.h"
#include "support/message_ends.h"

namespace p2p::engine {
namespace {

class NotificationsTest : public MessageEnds {};

TEST_F(NotificationsTest, NotificationsComeInOrderWhateverTheirLength) {
  std::vector<std::shared_ptr<TransferState>> states;
  std::vector<std::string> texts;
  for (const std::size_t size : {std::size_t{0}, std::size_t{5}, std::size_t{100000}, std::size_t{16384}}) {
    texts.emplace_back(size, static_cast<char>('a' + texts.size()));
    states.push_back(std::make_shared<TransferState>(size));
    sides_[0].notifications->send(texts.back(), states.back());
  }
  run();
  for (const auto& state : states) EXPECT_TRUE(good(state));
  EXPECT_EQ(sides_[1].notifications->take(), texts);
}

TEST_F(NotificationsTest, EachOfThoseThatWatchIsCalledForEachOne) {
  std::vector<std::string> seen;
  int others = 0;
  sides_[1].notifications->on_arrival([&] {
    for (std::string& text : sides_[1].notifications->take()) seen.push_back(std::move(text));
  });
  sides_[1].notifications->on_arrival([&] { ++others; });
  const std::string longer(40000, 'a');  // comes in parts
  for (const std::string& text : {longer, std::string("b")}) {
    sides_[0].notifications->send(text, std::make_shared<TransferState>(text.size()));
  }
  run();
  EXPECT_EQ(seen, (std::vector<std::string>{longer, "b"}));
  EXPECT_EQ(others, 2);
}

TEST_F(NotificationsTest, OneFromBadMemoryFailsAlone) {
  const p2p::testing::Pages pages(8192);
  p2p::testing::spoil(pages.bytes(), p2p::testing::Bad::kProtected);
  const auto bad = std::make_shared<TransferState>(100);
  const auto good_one = std::make_shared<TransferState>(1);
  sides_[0].notifications->send({reinterpret_cast<const char*>(pages.data()), 100}, bad);
  sides_[0].notifications->send("n", good_one);
  run();
  EXPECT_EQ(code(bad), ErrorCode::kSystem);
  EXPECT_TRUE(good(good_one));
  EXPECT_EQ(sides_[1].notifications->take(), std::vector<std::string>{"n"});
  EXPECT_EQ(sides_[0].notifications->open(), 0U);
}

// Nothing of it is said: a part that is missing would cost the connection.
TEST_F(NotificationsTest, OneOfSeveralPartsWhoseEndIsBadFailsAlone) {
  const p2p::testing::Pages pages(std::size_t{1} << 16);
  p2p::testing::spoil(pages.bytes().subspan(pages.bytes().size() / 2), p2p::testing::Bad::kProtected);
  const auto bad = std::make_shared<TransferState>(pages.bytes().size());
  const auto good_one = std::make_shared<TransferState>(1);
  sides_[0].notifications->send({reinterpret_cast<const char*>(pages.data()), pages.bytes().size()}, bad);
  sides_[0].notifications->send("n", good_one);
  run();
  EXPECT_EQ(code(bad), ErrorCode::kSystem);
  EXPECT_TRUE(good(good_one));
  EXPECT_EQ(sides_[1].notifications->take(), std::vector<std::string>{"n"});
}

TEST_F(NotificationsTest, OneFromBadMemoryFailsWhereItWouldWait) {
  for (std::size_t i = 0; i < kNotifications.count; ++i) {
    sides_[0].notifications->send("n", std::make_shared<TransferState>(1));
  }
  const p2p::testing::Pages pages(8192);
  p2p::testing::spoil(pages.bytes(), p2p::testing::Bad::kProtected);
  const auto bad = std::make_shared<TransferState>(100);
  sides_[0].notifications->send({reinterpret_cast<const char*>(pages.data()), 100}, bad);
  EXPECT_EQ(code(bad), ErrorCode::kSystem);
  EXPECT_EQ(sides_[0].notifications->delayed(), 0U);
}

TEST_F(NotificationsTest, NotificationsThatNobodyTakesWaitAtTheSender) {
  std::vector<std::shared_ptr<TransferState>> states;
  for (int i = 0; i < 100; ++i) {
    states.push_back(std::make_shared<TransferState>(1));
    sides_[0].notifications->send(std::to_string(i), states.back());
  }
  run();
  EXPECT_EQ(sides_[1].notifications->received(), kNotifications.count);
  EXPECT_EQ(sides_[0].notifications->delayed(), 100 - kNotifications.count);
  EXPECT_TRUE(good(states[7]));
  EXPECT_FALSE(states[8]->done());
  std::vector<std::string> all;
  for (int i = 0; i < 100 && all.size() < 100; ++i) {
    const auto some = sides_[1].notifications->take();
    EXPECT_LE(some.size(), kNotifications.count);
    all.insert(all.end(), some.begin(), some.end());
    run();
  }
  ASSERT_EQ(all.size(), 100U);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(all[static_cast<std::size_t>(i)], std::to_string(i));
  for (const auto& state : states) EXPECT_TRUE(good(state));
}

TEST_F(NotificationsTest, NotificationsThatWaitFailWhenThePeerTakesNoMore) {
  std::vector<std::shared_ptr<TransferState>> states;
  for (int i = 0; i < 10; ++i) {
    states.push_back(std::make_shared<TransferState>(1));
    sides_[0].notifications->send("n", states.back());
  }
  sides_[0].notifications->stop({ErrorCode::kPeerGone, "it closes"});
  EXPECT_EQ(states[9]->status().error().code, ErrorCode::kPeerGone);
  run();
  EXPECT_TRUE(good(states[7]));
  EXPECT_EQ(sides_[0].notifications->open(), 0U);
}

TEST_F(NotificationsTest, BytesOfNotificationsAreBoundedToo) {
  std::vector<std::shared_ptr<TransferState>> states;
  for (const std::size_t size : {200000, 150000, 100000, 200001}) {
    states.push_back(std::make_shared<TransferState>(size));
    sides_[0].notifications->send(std::string(size, 'n'), states.back());
  }
  EXPECT_EQ(states[3]->status().error().code, ErrorCode::kMessageTooLong);
  run();
  EXPECT_EQ(sides_[1].notifications->received(), 2U);
  EXPECT_FALSE(states[2]->done());
  EXPECT_EQ(sides_[1].notifications->take().size(), 2U);
  run();
  EXPECT_TRUE(good(states[2]));
  EXPECT_EQ(sides_[1].notifications->take().size(), 1U);
}

TEST_F(NotificationsTest, NotificationsBeyondTheRoomAreErrors) {
  for (std::uint64_t i = 0; i <= kNotifications.count; ++i) inject(wire::Notify{i, 0, 0, {}});
  ASSERT_FALSE(sides_[1].broken.empty());
  EXPECT_EQ(sides_[1].broken[0].code, ErrorCode::kProtocol);
  PostUnlockActions actions;
  EXPECT_FALSE(sides_[0].notifications->on(wire::Notify{0, kNotifications.bytes + 1, 0, Bytes(1)}, actions));
  EXPECT_FALSE(sides_[0].notifications->on(wire::NotifyTaken{1, 0}, actions));
  EXPECT_FALSE(sides_[0].notifications->on(wire::NotifyTaken{0, 1}, actions));
}

}  // namespace
}  // namespace p2p::engine
