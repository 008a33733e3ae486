// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// A channel's messages by words and by its link: order, and what a hostile peer may write.
#include "transport/cuda_ipc/requests/mail.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "transport/cuda_ipc/requests/channel_messages.h"

namespace p2p::cuda_ipc {
namespace {

class Link : public ControlLink {
 public:
  void send(std::span<const std::byte> message) override {
    sent.emplace_back(message.begin(), message.end());
  }

  std::deque<Bytes> sent;
};

Bytes numbered(std::size_t number, std::size_t size = 8) {
  Bytes message(std::max(size, sizeof number));
  std::memcpy(message.data(), &number, sizeof number);
  return message;
}

std::size_t number_of(const Bytes& message) {
  std::size_t number = 0;
  if (message.size() >= sizeof number) std::memcpy(&number, message.data(), sizeof number);
  return number;
}

bool is_look(const Bytes& message) { return message == encode(Look{}); }

class MailTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = RingMemory::create(descriptor_, 2);
    ASSERT_TRUE(made);
    lent_ = std::move(*made);
    auto opened = RingMemory::open(descriptor_, 2);
    ASSERT_TRUE(opened);
    borrowed_ = std::move(*opened);
  }

  void open(unsigned pair = 1) {
    asker_.ask_by(nullptr, borrowed_.direction(1, pair), borrowed_.direction(0, pair));
    EXPECT_TRUE(server_.serve_by(nullptr, lent_.direction(1, pair), lent_.direction(0, pair)));
  }

  /// What the server gets: messages of its link when `by_link` says so, words whenever they may come.
  void take_words() {
    while (server_.next(message_).value()) taken_.push_back(number_of(message_));
  }
  void take_from_link() {
    take_words();
    const Bytes message = link_.sent.front();
    link_.sent.pop_front();
    if (is_look(message)) return;
    server_.note_asked();
    taken_.push_back(number_of(message));
  }

  UniqueFd descriptor_;
  RingMemory lent_;
  RingMemory borrowed_;
  Link link_;
  Link back_;
  Mail asker_{&link_};
  Mail server_{&back_};
  Bytes message_;
  std::vector<std::size_t> taken_;
};

TEST_F(MailTest, GoesByTheLinkUntilThereAreWords) {
  asker_.ask(numbered(1));
  EXPECT_EQ(link_.sent.size(), 1U);
  EXPECT_FALSE(server_.next(message_).value());
  server_.answer(numbered(2));
  EXPECT_EQ(back_.sent.size(), 1U);
}

TEST_F(MailTest, WordsDoNotOvertakeTheLink) {
  asker_.ask(numbered(1));
  asker_.ask(numbered(2));
  open();
  asker_.ask(numbered(3));
  take_words();
  EXPECT_TRUE(taken_.empty());
  take_from_link();
  take_words();
  EXPECT_EQ(taken_.size(), 1U);
  take_from_link();
  take_words();
  EXPECT_EQ(taken_, (std::vector<std::size_t>{1, 2, 3}));
}

TEST_F(MailTest, TheLinkDoesNotOvertakeWords) {
  open();
  std::vector<std::size_t> expected;
  // What has no room goes by the link.
  for (std::size_t i = 1; i != 200; ++i) {
    asker_.ask(numbered(i, i % 7 == 0 ? kMaxMessageBlockBytes : 4000));
    expected.push_back(i);
  }
  EXPECT_GT(link_.sent.size(), 30U);
  while (!link_.sent.empty()) take_from_link();
  take_words();
  EXPECT_EQ(taken_, expected);
}

TEST_F(MailTest, AnswersComeBack) {
  open();
  server_.answer(numbered(7));
  EXPECT_TRUE(back_.sent.empty());
  ASSERT_TRUE(asker_.next(message_).value());
  EXPECT_EQ(number_of(message_), 7U);
  EXPECT_FALSE(asker_.next(message_).value());
}

TEST_F(MailTest, WakesTheOneWhoRests) {
  open();
  asker_.ask(numbered(1));
  EXPECT_TRUE(link_.sent.empty()) << "nobody rests";
  EXPECT_FALSE(server_.arm_events()) << "there is something to read";
  take_words();
  EXPECT_TRUE(server_.arm_events());
  asker_.ask(numbered(2));
  asker_.ask(numbered(3));
  ASSERT_EQ(link_.sent.size(), 1U) << "once";
  EXPECT_TRUE(is_look(link_.sent.front()));
  server_.enter_polling();
  take_words();
  EXPECT_EQ(taken_, (std::vector<std::size_t>{1, 2, 3}));
}

TEST_F(MailTest, IsServedByOneSetOfWords) {
  open(0);
  EXPECT_FALSE(server_.serve_by(nullptr, lent_.direction(1, 1), lent_.direction(0, 1)));
}

TEST_F(MailTest, WordsThatCannotBeAreErrors) {
  open();
  RingWriter hostile(borrowed_.direction(1, 1));
  ASSERT_TRUE(hostile.write(Bytes(3)).value());
  EXPECT_EQ(server_.next(message_).error().code, ErrorCode::kProtocol);
  EXPECT_FALSE(server_.next(message_)) << "for good";
  borrowed_.direction(1, 1).read = ~std::uint64_t{0} / 2;
  asker_.ask(numbered(1));
  EXPECT_FALSE(asker_.next(message_));
}

}  // namespace
}  // namespace p2p::cuda_ipc
