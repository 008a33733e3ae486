// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <array>
#include <filesystem>
#include <thread>
#include <vector>

#include "base/backoff.h"
#include "support/session_ends.h"

namespace p2p::engine {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator folder("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(folder), end(folder)));
}

TEST_F(SessionTest, IntroducesBothSides) {
  for (const char* text : {"", "a key"}) {
    Side connector;
    Side acceptor;
    connect(connector, config(text, 7), acceptor, config(text, 8));
    ASSERT_TRUE(connector.wait_open());
    ASSERT_TRUE(acceptor.wait_open());
    EXPECT_EQ(connector.peer().incarnation, 8U);
    EXPECT_EQ(acceptor.peer().incarnation, 7U);
    EXPECT_EQ(connector.peer().introduction.note, "note 8");
    EXPECT_EQ(acceptor.peer().introduction.note, "note 7");
    EXPECT_EQ(connector.peer().secret, acceptor.peer().secret);
    EXPECT_EQ(connector.peer().port, listener_.port());
    EXPECT_EQ(connector.peer().path.local_address, "127.0.0.1");
    EXPECT_EQ(acceptor.peer().path.remote_address, "127.0.0.1");
    connector.session->close({ErrorCode::kCancelled, "enough"});
    EXPECT_EQ(connector.wait_closed().message, "enough");
    EXPECT_EQ(acceptor.wait_closed().code, ErrorCode::kPeerGone);
    EXPECT_EQ(connector.times_closed(), 1);
    EXPECT_EQ(acceptor.times_closed(), 1);
  }
}

TEST_F(SessionTest, DialsNames) {
  Side connector;
  Side acceptor;
  dial(connector, listener_.port(), config(""), kPatience, "localhost");
  accept(acceptor, listener_.accept(), config(""));
  EXPECT_TRUE(connector.wait_open());
  EXPECT_TRUE(acceptor.wait_open());
  Side lost;
  dial(lost, 1, config(""), kPatience, "no such host");
  const Error error = lost.wait_closed();
  EXPECT_THAT(error.message, HasSubstr("no such host"));
  EXPECT_FALSE(lost.ever_opened());
  end({&connector, &acceptor, &lost});
}

TEST_F(SessionTest, SaysThatNobodyListens) {
  listener_.close();
  Side side;
  dial(side, listener_.port(), config(""));
  const Error error = side.wait_closed();
  EXPECT_EQ(error.code, ErrorCode::kUnavailable);
  EXPECT_THAT(error.message, HasSubstr("127.0.0.1:" + std::to_string(listener_.port())));
  EXPECT_THAT(error.message, HasSubstr("refused"));
}

TEST_F(SessionTest, DialsAgainWhenClosedBeforeAnyAnswer) {
  Side side;
  dial(side, listener_.port(), config(""));
  for (int i = 0; i != 3; ++i) {
    Stranger busy(listener_.accept());
    // Also after its hello was taken.
    EXPECT_TRUE(i != 1 || busy.next());
  }
  Side acceptor;
  accept(acceptor, listener_.accept(), config(""));
  EXPECT_TRUE(side.wait_open()) << side.wait_closed().message;
  end({&side, &acceptor});
}

TEST_F(SessionTest, DialsAgainWhenClosedInTheHandshake) {
  Side side;
  dial(side, listener_.port(), config(""));
  {
    Stranger busy(listener_.accept());
    ASSERT_TRUE(busy.next());
    busy.send(wire::Hello{.incarnation = 4});
    EXPECT_TRUE(busy.next()) << "it has taken the hello, and introduces itself";
  }
  Side acceptor;
  accept(acceptor, listener_.accept(), config(""));
  EXPECT_TRUE(side.wait_open()) << side.wait_closed().message;
  end({&side, &acceptor});
}

TEST_F(SessionTest, DialsAgainOnlySoOften) {
  Side side;
  dial(side, listener_.port(), config(""));
  int dials = 0;
  std::thread closer([&] {
    while (listener_.accept()) ++dials;
  });
  EXPECT_EQ(side.wait_closed().code, ErrorCode::kPeerGone);
  listener_.stop();
  closer.join();
  EXPECT_EQ(dials, 1 + kRedials.most);
  EXPECT_EQ(side.times_closed(), 1);
  end({&side});
}

TEST_F(SessionTest, KeepsTheOrderOfMessagesFromManySizes) {
  Side connector;
  Side acceptor;
  connect(connector, config("k"), acceptor, config("k"));
  constexpr std::size_t kMessages = 400;
  // From before the session is open: they wait for it.
  for (std::size_t i = 0; i < kMessages; ++i) {
    connector.session->send(wire::Notify{.notification = i, .part = Bytes(i * 97 % 60000, std::byte{1})});
    acceptor.session->send(wire::RegionRevoked{i});
  }
  ASSERT_TRUE(acceptor.wait_messages(kMessages)) << acceptor.wait_closed().message;
  ASSERT_TRUE(connector.wait_messages(kMessages)) << connector.wait_closed().message;
  const auto at_acceptor = acceptor.messages();
  const auto at_connector = connector.messages();
  for (std::size_t i = 0; i < kMessages; ++i) {
    ASSERT_EQ(std::get<wire::Notify>(at_acceptor[i]).notification, i);
    ASSERT_EQ(std::get<wire::Notify>(at_acceptor[i]).part.size(), i * 97 % 60000);
    ASSERT_EQ(std::get<wire::RegionRevoked>(at_connector[i]).revocation, i);
  }
  end({&connector, &acceptor});
}

TEST_F(SessionTest, MessagesOfManyThreadsStayWholeAndInOrder) {
  Side connector;
  Side acceptor;
  connect(connector, config(""), acceptor, config(""));
  ASSERT_TRUE(connector.wait_open());
  // Sizes on both sides of what the socket takes at once.
  constexpr std::size_t kThreads = 4;
  constexpr std::size_t kMessages = 150;
  const auto size = [](std::size_t i) { return i % 3 == 0 ? 5000 * i : i; };
  std::vector<std::thread> senders;
  for (std::size_t thread = 0; thread < kThreads; ++thread) {
    senders.emplace_back([&, thread] {
      for (std::size_t i = 0; i < kMessages; ++i) {
        connector.session->send(wire::Notify{.notification = thread * kMessages + i,
                                             .part = Bytes(size(i), static_cast<std::byte>(thread))});
      }
    });
  }
  for (std::thread& sender : senders) sender.join();
  ASSERT_TRUE(acceptor.wait_messages(kThreads * kMessages)) << acceptor.wait_closed().message;
  std::array<std::size_t, kThreads> next{};
  for (const wire::Message& message : acceptor.messages()) {
    const auto& notify = std::get<wire::Notify>(message);
    const std::size_t thread = notify.notification / kMessages;
    ASSERT_LT(thread, kThreads);
    const std::size_t i = next[thread]++;
    ASSERT_EQ(notify.notification, thread * kMessages + i);
    ASSERT_EQ(notify.part, Bytes(size(i), static_cast<std::byte>(thread)));
  }
  end({&connector, &acceptor});
}

TEST_F(SessionTest, CloseSendsWhatIsQueued) {
  Side connector;
  Side acceptor;
  SessionConfig patient = config("");
  patient.keepalive = 20s;  // for that long the end waits
  connect(connector, patient, acceptor, patient);
  ASSERT_TRUE(connector.wait_open());
  constexpr std::size_t kMessages = 64;  // far more than the socket's buffers take
  for (std::size_t i = 0; i < kMessages; ++i) {
    connector.session->send(wire::Notify{.notification = i, .part = Bytes(512 << 10, std::byte{2})});
  }
  connector.session->send(wire::Bye{"done"});
  connector.session->close({ErrorCode::kCancelled, "closed here"});
  connector.session->send(wire::Bye{"too late"});
  ASSERT_TRUE(acceptor.wait_messages(kMessages + 1)) << acceptor.wait_closed().message;
  EXPECT_EQ(acceptor.wait_closed().code, ErrorCode::kPeerGone);
  EXPECT_EQ(acceptor.messages().size(), kMessages + 1);
  EXPECT_EQ(std::get<wire::Bye>(acceptor.messages().back()).reason, "done");
  EXPECT_EQ(connector.wait_closed().message, "closed here");
}

TEST_F(SessionTest, BothSidesMayCloseAtOnce) {
  for (int round = 0; round < 50; ++round) {
    Side connector;
    Side acceptor;
    connect(connector, config(""), acceptor, config(""));
    ASSERT_TRUE(connector.wait_open());
    ASSERT_TRUE(acceptor.wait_open());
    for (Side* side : {&connector, &acceptor}) {
      side->session->send(wire::Bye{"bye"});
      side->session->close({ErrorCode::kCancelled, "closed here"});
    }
    // Each ends by its own reason, or by the other's end if that came first.
    for (Side* side : {&connector, &acceptor}) {
      EXPECT_THAT(side->wait_closed().message,
                  ::testing::AnyOf("closed here", ::testing::HasSubstr("the peer closed the connection")));
    }
  }
}

TEST_F(SessionTest, RefusesAMessageThatIsTooLong) {
  Side connector;
  Side acceptor;
  connect(connector, config(""), acceptor, config(""));
  ASSERT_TRUE(connector.wait_open());
  connector.session->send(wire::Notify{.part = Bytes(wire::kMaxFrameBytes)});
  EXPECT_EQ(connector.wait_closed().code, ErrorCode::kMessageTooLong);
  acceptor.wait_closed();
}

TEST_F(SessionTest, StaysOpenWithNothingToSay) {
  SessionConfig quick = config("k");
  quick.keepalive = 600ms;
  Side connector;
  Side acceptor;
  connect(connector, quick, acceptor, quick);
  ASSERT_TRUE(connector.wait_heartbeats(18)) << connector.wait_closed().message;
  ASSERT_TRUE(acceptor.wait_heartbeats(18)) << acceptor.wait_closed().message;
  EXPECT_TRUE(connector.open_still());
  EXPECT_TRUE(acceptor.open_still());
  end({&connector, &acceptor});
}

TEST_F(SessionTest, EndsWhenDropped) {
  Side connector;
  Side acceptor;
  connect(connector, config(""), acceptor, config(""));
  ASSERT_TRUE(connector.wait_open());
  connector.session.reset();
  EXPECT_EQ(connector.wait_closed().code, ErrorCode::kCancelled);
  EXPECT_EQ(acceptor.wait_closed().code, ErrorCode::kPeerGone);
}

TEST_F(SessionTest, ClosesWhileStillConnecting) {
  Side side;
  dial(side, listener_.port(), config("k"));
  side.session->close({ErrorCode::kCancelled, "changed my mind"});
  EXPECT_EQ(side.wait_closed().message, "changed my mind");
  EXPECT_FALSE(side.ever_opened());
}

TEST_F(SessionTest, LeavesNoDescriptorBehind) {
  constexpr int kRounds = 1000;
  std::size_t before = 0;
  for (int round = 0; round < kRounds; ++round) {
    if (round == 10) before = open_descriptors();
    Side connector;
    Side acceptor;
    connect(connector, config("k"), acceptor, config("k"));
    ASSERT_TRUE(connector.wait_open()) << connector.wait_closed().message;
    ASSERT_TRUE(acceptor.wait_open()) << acceptor.wait_closed().message;
    Side& first = round % 2 == 0 ? connector : acceptor;
    Side& second = round % 2 == 0 ? acceptor : connector;
    first.session->close({ErrorCode::kCancelled, "next"});
    ASSERT_EQ(second.wait_closed().code, ErrorCode::kPeerGone);
    ASSERT_EQ(first.wait_closed().message, "next");
  }
  EXPECT_EQ(open_descriptors(), before);
}

}  // namespace
}  // namespace p2p::engine
