// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Sends of one side and receives of the other, over messages that a queue carries.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/messaging/notifications.h"
#include "engine/messaging/receives.h"
#include "engine/messaging/sends.h"
#include "support/plain_transport.h"

namespace p2p::engine {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

constexpr std::uint64_t kRoom = 4096;
constexpr Notifications::Amount kNotifications{8, 400000};

std::shared_ptr<Context> make_context() {
  auto context = std::make_shared<Context>();
  TransportList transports{{std::make_shared<p2p::testing::PlainTransport>("any")}};
  context->regions = std::make_shared<RegionTable>(std::move(transports), 1, 1s);
  return context;
}

class MessagesTest : public ::testing::Test {
 protected:
  struct Side {
    std::shared_ptr<MessageStream> messages;
    std::shared_ptr<Sends> sends;
    std::shared_ptr<Receives> receives;
    std::shared_ptr<Notifications> notifications;
    std::deque<Bytes> out;
    std::vector<Error> broken;
    std::vector<std::size_t> came;  // types
  };

  void SetUp() override {
    for (Side& side : sides_) {
      side.messages = std::make_shared<MessageStream>(
          0us, MessageStream::Hooks{[&side](const wire::Message& message) {
                                      side.out.push_back(std::get<wire::MessageBlock>(message).block);
                                    },
                                    [&side](wire::Message& message, PostUnlockActions& actions) {
                                      side.came.push_back(message.index());
                                      return handle(side, message, actions);
                                    },
                                    [&side](const Error& error) { side.broken.push_back(error); }});
      side.notifications = std::make_shared<Notifications>(side.messages, kNotifications);
      side.receives = std::make_shared<Receives>(context_, side.messages, kRoom);
      side.sends = std::make_shared<Sends>(
          context_, side.messages,
          Sends::Link{[](const wire::ReceiveSpan& span) -> Result<RemoteSpan> {
                        return RemoteSpan{RemoteRegionId{1}, span.address, span.size};
                      },
                      [this](std::span<const LocalSpan> local, std::span<const RemoteSpan> remote,
                             std::function<void(Status)> done) {
                        ++writes_;
                        for (std::size_t i = 0; i < local.size(); ++i) {
                          std::memcpy(reinterpret_cast<void*>(remote[i].address), local[i].data,
                                      local[i].size);
                        }
                        auto state = std::make_shared<TransferState>(total_of(local));
                        if (holds_writes_) {
                          held_ = std::move(done);
                          return state;
                        }
                        state->finish({});
                        done({});
                        return state;
                      }});
      side.sends->set_room(kRoom);
      side.notifications->set_peer_room(kNotifications);
      side.messages->travel_by(nullptr);
    }
    memory_.resize(std::size_t{1} << 20);
    for (std::size_t i = 0; i < memory_.size(); ++i) memory_[i] = static_cast<std::byte>(i * 7 + i / 251);
    region_ = *context_->regions->add(memory_.data(), memory_.size(), {});
  }

  void TearDown() override {
    EXPECT_TRUE(region_->revoke(std::chrono::steady_clock::now() + 1s));  // it keeps the table
  }

  static std::uint64_t total_of(std::span<const LocalSpan> spans) {
    std::uint64_t bytes = 0;
    for (const LocalSpan& span : spans) bytes += span.size;
    return bytes;
  }

  static Status handle(Side& side, wire::Message& message, PostUnlockActions& actions) {
    if (auto* m = std::get_if<wire::EagerMessage>(&message)) return side.receives->on(*m, actions);
    if (auto* m = std::get_if<wire::MessageWithdrawn>(&message)) return side.receives->on(*m);
    if (auto* m = std::get_if<wire::ReceiveDone>(&message)) return side.receives->on(*m, actions);
    if (auto* m = std::get_if<wire::ReceiveWanted>(&message)) return side.receives->on(*m);
    if (auto* m = std::get_if<wire::SendsEnded>(&message)) return side.receives->on(*m, actions), Status{};
    if (auto* m = std::get_if<wire::ReceivePosted>(&message)) return side.sends->on(*m, actions);
    if (auto* m = std::get_if<wire::ReceiveWithdrawn>(&message)) return side.sends->on(*m, actions);
    if (auto* m = std::get_if<wire::MessageAnswered>(&message)) return side.sends->on(*m, actions);
    if (auto* m = std::get_if<wire::MessageDeclined>(&message)) return side.sends->on(*m, actions);
    if (auto* m = std::get_if<wire::Notify>(&message)) return side.notifications->on(*m);
    if (auto* m = std::get_if<wire::NotifyTaken>(&message)) return side.notifications->on(*m, actions);
    if (auto* m = std::get_if<wire::NotifyDone>(&message))
      return side.notifications->on(*m, actions), Status{};
    return fail(ErrorCode::kProtocol, "no word");
  }

  void run() {
    for (bool any = true; any;) {
      any = false;
      for (int from = 0; from < 2; ++from) {
        std::deque<Bytes> blocks;
        blocks.swap(sides_[from].out);
        any = any || !blocks.empty();
        for (const Bytes& block : blocks) {
          PostUnlockActions actions;
          sides_[1 - from].messages->take(block, actions);
          actions.run();
          sides_[1 - from].messages->flush();
        }
      }
    }
    for (const Side& side : sides_) {
      ASSERT_TRUE(side.broken.empty() || hostile_) << side.broken.front().message;
    }
  }

  LocalSpan span(std::size_t offset, std::size_t size) {
    return {region_->info().id, memory_.data() + offset, size};
  }

  std::shared_ptr<TransferState> send(std::size_t offset, std::size_t size) {
    const LocalSpan one = span(offset, size);
    return sides_[0].sends->post({&one, 1});
  }

  std::shared_ptr<TransferState> receive(std::size_t offset, std::size_t size) {
    const LocalSpan one = span(offset, size);
    return sides_[1].receives->post({&one, 1});
  }

  bool same(std::size_t a, std::size_t b, std::size_t size) {
    return std::memcmp(memory_.data() + a, memory_.data() + b, size) == 0;
  }

  static ErrorCode code(const std::shared_ptr<TransferState>& state) {
    EXPECT_TRUE(state->done());
    return state->done() && !state->status() ? state->status().error().code : ErrorCode{255};
  }
  static bool good(const std::shared_ptr<TransferState>& state) { return state->done() && state->status(); }

  // What a hostile peer of side 1 says.
  void inject(const wire::Message& message) {
    hostile_ = true;
    sides_[0].messages->say(message);
    sides_[0].messages->flush();
    run();
  }

  const std::shared_ptr<Context> context_ = make_context();
  Side sides_[2];
  std::vector<std::byte> memory_;
  std::shared_ptr<Region> region_;
  int writes_ = 0;
  bool holds_writes_ = false;
  std::function<void(Status)> held_;
  bool hostile_ = false;
};

TEST_F(MessagesTest, ShortOnesTravelEagerlyInEitherOrder) {
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

TEST_F(MessagesTest, LongOnesAreWrittenOnceTheReceiveIsThere) {
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

TEST_F(MessagesTest, TheirOrderIsOneWhateverTheirLength) {
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

TEST_F(MessagesTest, AReceiverThatPostsNothingStopsItsSenderAlone) {
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

TEST_F(MessagesTest, OneThatIsTooLongFailsOnBothSides) {
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

TEST_F(MessagesTest, SpansMeetSpansOrAStreamOfBytes) {
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

TEST_F(MessagesTest, ACancelledReceiveKeepsItsNumber) {
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
TEST_F(MessagesTest, AReceiveOnADeviceIsCancelledWhileAMessageIsOnItsWay) {
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

TEST_F(MessagesTest, ACancelledSendKeepsItsNumber) {
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

TEST_F(MessagesTest, CancelledWhileTheyWaitForRoom) {
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

TEST_F(MessagesTest, TheEndOfOneSideEndsWhatHasNotMet) {
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

TEST_F(MessagesTest, ReceivesEndWithTheSendsOfThePeer) {
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

// The peer would hear of it ahead of the bytes that wait in its sockets.
TEST_F(MessagesTest, TheFailureOfAWriteThatWasCutOffIsNotTold) {
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

TEST_F(MessagesTest, MemoryThatIsGoneFailsBothSides) {
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

TEST_F(MessagesTest, WithoutRoomAllAreWritten) {
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

TEST_F(MessagesTest, NotificationsComeInOrderWhateverTheirLength) {
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

TEST_F(MessagesTest, NotificationsThatNobodyTakesWaitAtTheSender) {
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

TEST_F(MessagesTest, NotificationsThatWaitFailWhenThePeerTakesNoMore) {
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

TEST_F(MessagesTest, BytesOfNotificationsAreBoundedToo) {
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

TEST_F(MessagesTest, NotificationsBeyondTheRoomAreErrors) {
  for (std::uint64_t i = 0; i <= kNotifications.count; ++i) inject(wire::Notify{i, 0, 0, {}});
  ASSERT_FALSE(sides_[1].broken.empty());
  EXPECT_EQ(sides_[1].broken[0].code, ErrorCode::kProtocol);
  EXPECT_FALSE(sides_[0].notifications->on(wire::Notify{0, kNotifications.bytes + 1, 0, Bytes(1)}));
  PostUnlockActions actions;
  EXPECT_FALSE(sides_[0].notifications->on(wire::NotifyTaken{1, 0}, actions));
  EXPECT_FALSE(sides_[0].notifications->on(wire::NotifyTaken{0, 1}, actions));
}

TEST_F(MessagesTest, MoreThanThereIsRoomForIsAnError) {
  for (std::uint64_t i = 0; i < 10; ++i) {
    inject(wire::EagerMessage{.sequence = i, .error = 0, .spans = {}, .bytes = Bytes(1000)});
  }
  ASSERT_FALSE(sides_[1].broken.empty());
  EXPECT_EQ(sides_[1].broken[0].code, ErrorCode::kProtocol);
  EXPECT_THAT(sides_[1].broken[0].message, HasSubstr("room"));
}

TEST_F(MessagesTest, EagerMessagesThatMakeNoSenseAreErrors) {
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

TEST_F(MessagesTest, AnswersToWhatWasNotAskedAreErrors) {
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
