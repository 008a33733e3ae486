// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/messaging/sends.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "support/message_ends.h"

namespace p2p::engine {
namespace {

class SendsTest : public MessageEnds {};

TEST_F(SendsTest, ShortOnesTravelEagerlyInEitherOrder) {
  const auto first = receive(1000, 600);
  const auto early = send(0, 500);
  const auto late = send(500, 400);
  run();
  EXPECT_TRUE(good(early));
  EXPECT_TRUE(good(first));
  EXPECT_EQ(first->bytes(), 500U);
  EXPECT_FALSE(late->done());
  const auto second = receive(2000, 400);
  run();
  EXPECT_TRUE(good(late));
  EXPECT_TRUE(good(second));
  EXPECT_TRUE(same(0, 1000, 500));
  EXPECT_TRUE(same(500, 2000, 400));
  EXPECT_EQ(writes_, 0);
  EXPECT_EQ(sides_[1].receives->received(), 2U);
}

TEST_F(SendsTest, LongOnesAreWrittenOnceTheReceiveIsThere) {
  const auto before = receive(100000, 50000);
  const auto one = send(0, 50000);
  const auto two = send(50000, 40000);
  run();
  EXPECT_TRUE(good(one));
  EXPECT_TRUE(good(before));
  EXPECT_FALSE(two->done());
  const auto after = receive(200000, 60000);
  run();
  EXPECT_TRUE(good(two));
  EXPECT_EQ(after->bytes(), 40000U);
  EXPECT_TRUE(same(0, 100000, 50000));
  EXPECT_TRUE(same(50000, 200000, 40000));
  EXPECT_EQ(writes_, 2);
}

TEST_F(SendsTest, TheirOrderIsOneWhateverTheirLength) {
  std::vector<std::shared_ptr<TransferState>> all;
  std::size_t at = 0;
  for (int i = 0; i < 20; ++i) {
    const std::size_t size = i % 3 == 0 ? 20000 : 100 + static_cast<std::size_t>(i);
    all.push_back(send(at, size));
    at += size;
    if (i % 4 == 1) run();
  }
  std::size_t into = 500000;
  at = 0;
  for (int i = 0; i < 20; ++i) {
    all.push_back(receive(into, 20000));
    if (i % 5 == 2) run();
    into += 20000;
  }
  run();
  into = 500000;
  for (int i = 0; i < 20; ++i) {
    const std::size_t size = i % 3 == 0 ? 20000 : 100 + static_cast<std::size_t>(i);
    EXPECT_TRUE(same(at, into, size)) << i;
    at += size;
    into += 20000;
  }
  for (const auto& one : all) EXPECT_TRUE(good(one));
}

TEST_F(SendsTest, OneThatIsTooLongFailsOnBothSides) {
  for (const std::size_t size : {std::size_t{600}, std::size_t{50000}}) {
    const auto into = receive(100000, size - 1);
    const auto sent = send(0, size);
    run();
    EXPECT_EQ(code(into), ErrorCode::kMessageTooLong);
    EXPECT_EQ(code(sent), ErrorCode::kMessageTooLong);
  }
  const auto into = receive(100000, 10);
  const auto sent = send(0, 10);
  run();
  EXPECT_TRUE(good(into));
  EXPECT_TRUE(good(sent));
}

TEST_F(SendsTest, ACancelledSendKeepsItsNumber) {
  for (const std::size_t size : {std::size_t{100}, std::size_t{50000}}) {
    for (const bool heard : {false, true}) {
      const auto given_up = send(0, size);
      if (heard) run();
      given_up->cancel();
      run();
      EXPECT_EQ(code(given_up), ErrorCode::kCancelled);
      const auto unmet = receive(100000, size);
      const auto met = receive(200000, size);
      const auto sent = send(1000, size);
      run();
      EXPECT_EQ(code(unmet), ErrorCode::kCancelled);
      EXPECT_TRUE(good(met));
      EXPECT_TRUE(good(sent));
    }
  }
  // Over and over: what is given up leaves room for what follows.
  for (int i = 0; i < 200; ++i) {
    const auto given_up = send(0, 900);
    run();
    given_up->cancel();
    run();
    ASSERT_TRUE(given_up->done()) << i;
    const auto unmet = receive(100000, 900);
    run();
    ASSERT_TRUE(unmet->done()) << i;
  }
}

TEST_F(SendsTest, CancelledWhileTheyWaitForRoom) {
  std::vector<std::shared_ptr<TransferState>> sends;
  for (std::size_t i = 0; i < 12; ++i) sends.push_back(send(i * 900, 900));
  run();
  sends[10]->cancel();
  EXPECT_EQ(code(sends[10]), ErrorCode::kCancelled);
  std::vector<std::shared_ptr<TransferState>> receives;
  for (std::size_t i = 0; i < 12; ++i) receives.push_back(receive(100000 + i * 900, 900));
  run();
  for (std::size_t i = 0; i < 12; ++i) {
    if (i == 10) {
      EXPECT_EQ(code(receives[i]), ErrorCode::kCancelled);
    } else {
      EXPECT_TRUE(good(receives[i])) << i;
      EXPECT_TRUE(same(i * 900, 100000 + i * 900, 900)) << i;
    }
  }
}

TEST_F(SendsTest, TheEndOfOneSideEndsWhatHasNotMet) {
  const auto unread = send(0, 100);
  const auto unmet = send(0, 50000);
  run();
  const Error error{ErrorCode::kPeerGone, "as the test asked"};
  sides_[0].sends->stop(error);
  EXPECT_EQ(code(unmet), ErrorCode::kPeerGone);
  EXPECT_FALSE(unread->done()) << "it may have been received";
  sides_[1].receives->stop(error);
  run();
  EXPECT_EQ(code(unread), ErrorCode::kPeerGone);
  EXPECT_EQ(sides_[0].sends->open(), 0U);
}

// The peer would hear of it ahead of the bytes that wait in its sockets.
TEST_F(SendsTest, TheFailureOfAWriteThatWasCutOffIsNotTold) {
  holds_writes_ = true;
  const auto received = receive(100000, 50000);
  const auto sent = send(0, 50000);
  run();
  ASSERT_TRUE(held_);
  const Error error{ErrorCode::kCancelled, "closed"};
  sides_[0].sends->stop(error);
  sides_[0].sends->cut_off();
  held_(tl::unexpected(error));
  run();
  EXPECT_EQ(code(sent), ErrorCode::kCancelled);
  EXPECT_FALSE(received->done()) << "bytes may still land";
  sides_[1].receives->close({ErrorCode::kPeerGone, "closed"});
  EXPECT_EQ(code(received), ErrorCode::kPeerGone);
}

// One waits for room at the peer, and its memory is given back meanwhile.
TEST_F(SendsTest, ARegionThatIsGoneWhenTheMessageLeavesFailsBothEnds) {
  const auto gone = *context_->regions->add(memory_.data(), 4096, {});
  const LocalSpan span{gone->info().id, memory_.data(), 900};
  std::vector<std::shared_ptr<TransferState>> before;
  for (int i = 0; i < 4; ++i) before.push_back(send(0, 900));
  const auto sent = sides_[0].sends->post({&span, 1});
  const auto after = send(0, 900);
  EXPECT_TRUE(gone->revoke(std::chrono::steady_clock::now() + std::chrono::seconds(1)));
  for (const auto& one : before) {
    const auto into = receive(100000, 1000);
    run();
    EXPECT_TRUE(good(one));
    EXPECT_TRUE(good(into));
  }
  EXPECT_EQ(code(sent), ErrorCode::kNotFound) << "before its receive is posted";
  const auto into = receive(100000, 1000);
  run();
  EXPECT_EQ(code(into), ErrorCode::kNotFound);
  for (const auto& one : {sent, into}) {
    EXPECT_NE(one->status().error().message.find("send: no local region"), std::string::npos)
        << one->status().error().message;
  }
  const auto next = receive(100000, 1000);
  run();
  EXPECT_TRUE(good(after));
  EXPECT_TRUE(good(next));
  EXPECT_EQ(sides_[0].sends->open(), 0U);
}

TEST_F(SendsTest, WithoutRoomAllAreWritten) {
  sides_[0].sends->set_room(0);
  const auto into = receive(100000, 10);
  const auto sent = send(0, 10);
  const auto later = send(10, 10);
  run();
  EXPECT_TRUE(good(into));
  EXPECT_TRUE(good(sent));
  const auto late = receive(100010, 10);
  run();
  EXPECT_TRUE(good(late));
  EXPECT_TRUE(good(later));
  EXPECT_EQ(writes_, 2);
  EXPECT_TRUE(same(0, 100000, 20));
}

TEST_F(SendsTest, AnswersToWhatWasNotAskedAreErrors) {
  PostUnlockActions actions;
  EXPECT_FALSE(sides_[0].sends->on(wire::MessageAnswered{0, 0, ""}, actions));
  EXPECT_FALSE(sides_[0].sends->on(wire::MessageDeclined{0}, actions));
  EXPECT_FALSE(sides_[1].receives->on(wire::ReceiveDone{0, 0, 0, ""}, actions));
  const auto untold = receive(0, 10);
  EXPECT_FALSE(sides_[1].receives->on(wire::ReceiveDone{0, 5, 0, ""}, actions)) << "nobody knows where it is";
  const auto told = receive(0, 50000);
  EXPECT_FALSE(sides_[1].receives->on(wire::ReceiveDone{1, 50001, 0, ""}, actions));
  EXPECT_TRUE(sides_[1].receives->on(wire::ReceiveDone{1, 50000, 0, ""}, actions));
  const wire::ReceiveSpan over{.address = ~std::uint64_t{0}, .size = 2};
  wire::ReceivePosted posted{0, 0, {over}};
  EXPECT_FALSE(sides_[0].sends->on(posted, actions));
}

}  // namespace
}  // namespace p2p::engine
