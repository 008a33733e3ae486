// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/messaging/receives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "support/message_ends.h"

namespace p2p::engine {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

class ReceivesTest : public MessageEnds {};

TEST_F(ReceivesTest, AReceiverThatPostsNothingStopsItsSenderAlone) {
  std::vector<std::shared_ptr<TransferState>> sends;
  for (std::size_t i = 0; i < 50; ++i) sends.push_back(send(i * 500, 500));
  run();
  std::size_t came = 0;
  for (const std::size_t type : sides_[1].came) came += type == wire::Message(wire::EagerMessage{}).index();
  EXPECT_EQ(came, kRoom / (500 + Sends::kEagerCost));
  // Notifications pass by, and the other direction works.
  const auto notified = std::make_shared<TransferState>(1);
  sides_[0].notifications->send("x", notified);
  const LocalSpan back = span(600000, 100);
  const auto received = sides_[0].receives->post({&back, 1});
  const LocalSpan source = span(0, 100);
  const auto sent = sides_[1].sends->post({&source, 1});
  run();
  EXPECT_TRUE(good(notified));
  EXPECT_TRUE(good(sent));
  EXPECT_TRUE(good(received));
  std::vector<std::shared_ptr<TransferState>> receives;
  for (std::size_t i = 0; i < 50; ++i) receives.push_back(receive(100000 + i * 500, 500));
  run();
  for (const auto& one : sends) EXPECT_TRUE(good(one));
  for (const auto& one : receives) EXPECT_TRUE(good(one));
  EXPECT_TRUE(same(0, 100000, 25000));
}

TEST_F(ReceivesTest, SpansMeetSpansOrAStreamOfBytes) {
  const std::vector<LocalSpan> message{span(0, 100), span(200, 50)};
  for (const std::vector<LocalSpan>& into : {std::vector<LocalSpan>{span(100000, 120), span(100200, 60)},
                                             std::vector<LocalSpan>{span(100000, 150)}}) {
    std::memset(memory_.data() + 100000, 0, 300);
    const auto received = sides_[1].receives->post(into);
    const auto sent = sides_[0].sends->post(message);
    run();
    ASSERT_TRUE(good(received));
    ASSERT_TRUE(good(sent));
    EXPECT_EQ(received->bytes(), 150U);
    EXPECT_TRUE(same(0, 100000, 100));
    EXPECT_TRUE(same(200, into.size() == 2 ? 100200 : 100100, 50));
  }
  const std::vector<LocalSpan> narrow{span(100000, 150), span(100200, 49)};
  const auto received = sides_[1].receives->post(narrow);
  const auto sent = sides_[0].sends->post(message);
  run();
  EXPECT_EQ(code(received), ErrorCode::kMessageTooLong);
  EXPECT_EQ(code(sent), ErrorCode::kMessageTooLong);
}

TEST_F(ReceivesTest, ACancelledReceiveKeepsItsNumber) {
  for (const std::size_t size : {std::size_t{100}, std::size_t{50000}}) {
    const auto given_up = receive(100000, size);
    run();
    given_up->cancel();
    run();
    EXPECT_EQ(code(given_up), ErrorCode::kCancelled);
    const auto next = receive(100000, size);
    const auto unmet = send(0, size);
    const auto met = send(1000, size);
    run();
    EXPECT_EQ(code(unmet), ErrorCode::kCancelled);
    EXPECT_TRUE(good(met));
    EXPECT_TRUE(good(next));
    EXPECT_TRUE(same(1000, 100000, size));
  }
}

// The sender cannot know yet that eager messages are not for it.
TEST_F(ReceivesTest, AReceiveOnADeviceIsCancelledWhileAMessageIsOnItsWay) {
  const auto device = *context_->regions->add(memory_.data() + 100000, 1000, {MemoryKind::kCuda, 0});
  const LocalSpan into{device->info().id, memory_.data() + 100000, 100};
  const auto sent = send(0, 100);
  const auto received = sides_[1].receives->post({&into, 1});
  received->cancel();
  run();
  EXPECT_EQ(code(received), ErrorCode::kCancelled);
  EXPECT_EQ(code(sent), ErrorCode::kCancelled);
  const auto next = sides_[1].receives->post({&into, 1});
  const auto met = send(1000, 100);
  run();
  EXPECT_TRUE(good(met));
  EXPECT_TRUE(good(next));
  EXPECT_TRUE(same(1000, 100000, 100));
  EXPECT_TRUE(device->revoke(std::chrono::steady_clock::now() + 1s));
}

TEST_F(ReceivesTest, ReceivesEndWithTheSendsOfThePeer) {
  const auto told = receive(100000, 50000);
  const auto untold = receive(200000, 100);
  run();
  sides_[0].sends->stop({ErrorCode::kCancelled, "closed"});
  run();
  EXPECT_EQ(code(told), ErrorCode::kPeerGone);
  EXPECT_EQ(code(untold), ErrorCode::kPeerGone);
  EXPECT_EQ(code(receive(0, 10)), ErrorCode::kPeerGone);
  EXPECT_EQ(sides_[1].receives->open(), 0U);
}

TEST_F(ReceivesTest, MemoryThatIsGoneFailsBothSides) {
  std::vector<std::byte> other(1000);
  const auto region = *context_->regions->add(other.data(), other.size(), {});
  const LocalSpan into{region->info().id, other.data(), other.size()};
  const auto received = sides_[1].receives->post({&into, 1});
  region->revoke(std::chrono::steady_clock::now() + 1s);
  const auto sent = send(0, 100);
  run();
  EXPECT_EQ(code(received), ErrorCode::kNotFound);
  EXPECT_EQ(code(sent), ErrorCode::kNotFound);
}

TEST_F(ReceivesTest, MoreThanThereIsRoomForIsAnError) {
  for (std::uint64_t i = 0; i < 10; ++i) {
    inject(wire::EagerMessage{.sequence = i, .error = 0, .spans = {}, .bytes = Bytes(1000)});
  }
  ASSERT_FALSE(sides_[1].broken.empty());
  EXPECT_EQ(sides_[1].broken[0].code, ErrorCode::kProtocol);
  EXPECT_THAT(sides_[1].broken[0].message, HasSubstr("room"));
}

TEST_F(ReceivesTest, EagerMessagesThatMakeNoSenseAreErrors) {
  const std::vector<wire::EagerMessage> wrong{
      {.sequence = 3, .error = 0, .spans = {4, 4}, .bytes = Bytes(7)},
      {.sequence = 3, .error = 0, .spans = {}, .bytes = Bytes(Sends::kMostEagerBytes + 1)},
      {.sequence = 3, .error = 0, .spans = std::vector<std::uint32_t>(65, 1), .bytes = Bytes(65)}};
  for (const wire::EagerMessage& message : wrong) {
    wire::EagerMessage copy = message;
    PostUnlockActions actions;
    const Status taken = sides_[1].receives->on(copy, actions);
    ASSERT_FALSE(taken);
    EXPECT_EQ(taken.error().code, ErrorCode::kProtocol);
  }
  wire::EagerMessage fine{.sequence = 3, .error = 0, .spans = {}, .bytes = Bytes(7)};
  PostUnlockActions actions;
  EXPECT_TRUE(sides_[1].receives->on(fine, actions));
  EXPECT_FALSE(sides_[1].receives->on(fine, actions)) << "twice";
}

}  // namespace
}  // namespace p2p::engine
