// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <atomic>
#include <functional>
#include <future>
#include <random>
#include <thread>

#include "support/session_ends.h"

namespace p2p::engine {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

TEST_F(SessionTest, RefusesWrongAndMissingKeysOnBothSides) {
  for (const auto& [mine, theirs] : {std::pair("right", "wrong"), {"right", ""}, {"", "right"}}) {
    Side connector;
    Side acceptor;
    connect(connector, config(mine), acceptor, config(theirs));
    const Error here = connector.wait_closed();
    const Error there = acceptor.wait_closed();
    EXPECT_EQ(here.code, ErrorCode::kPermissionDenied) << here.message;
    EXPECT_EQ(there.code, ErrorCode::kPermissionDenied) << there.message;
    EXPECT_THAT(here.message, HasSubstr("key"));
    EXPECT_THAT(there.message, HasSubstr("key"));
    EXPECT_FALSE(connector.ever_opened());
    EXPECT_FALSE(acceptor.ever_opened());
  }
}

// A made-up next version of the wire.
TEST_F(SessionTest, SpeaksItsOwnVersionWithAPeerThatKnowsTheNextOneToo) {
  for (const bool dials : {true, false}) {
    auto [ours, theirs] = socket_pair();
    Side side;
    if (dials) {
      dial(side, listener_.port(), config(""));
    } else {
      accept(side, std::move(ours), config(""));
    }
    Stranger peer(dials ? listener_.accept() : std::move(theirs));
    peer.send(wire::Hello{.oldest = 1, .newest = 2, .incarnation = 2});
    peer.send(wire::Introduction{});
    EXPECT_TRUE(side.wait_open()) << side.wait_closed().message;
    EXPECT_TRUE(side.ever_opened() && side.peer().version == 1);
    peer.fd.reset();
    side.wait_closed();
  }
}

TEST_F(SessionTest, RefusesAPeerThatKnowsOnlyTheNextVersionWithBothNumbers) {
  auto [ours, theirs] = socket_pair();
  Side side;
  accept(side, std::move(ours), config("k"));
  Stranger stranger(std::move(theirs));
  stranger.send(wire::Hello{.oldest = 2, .newest = 2});
  const auto hello = stranger.next();
  ASSERT_TRUE(hello);
  EXPECT_EQ(std::get<wire::Hello>(*hello).versions(), wire::kVersions);
  const auto bye = stranger.next();
  ASSERT_TRUE(bye);
  EXPECT_THAT(std::get<wire::Bye>(*bye).reason, HasSubstr("this side speaks 1, the peer 2"));
  EXPECT_TRUE(stranger.dropped());
  const Error error = side.wait_closed();
  EXPECT_EQ(error.code, ErrorCode::kUnavailable);
  EXPECT_THAT(error.message, HasSubstr("this side speaks 1, the peer 2"));
}

TEST_F(SessionTest, DropsStrangersThatSendRandomBytes) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 50; ++round) {
    auto [ours, theirs] = socket_pair();
    Side side;
    accept(side, std::move(ours), config(round % 2 == 0 ? "" : "k"));
    Stranger stranger(std::move(theirs));
    Bytes bytes(1 + random() % 5000);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    // Never a length that is allowed, of which more would be awaited until the deadline.
    if (bytes.size() >= 4) bytes[3] = std::byte{1};
    stranger.send(bytes);
    if (bytes.size() < 4) shutdown(stranger.fd.get(), SHUT_WR);
    EXPECT_TRUE(stranger.dropped());
    const Error error = side.wait_closed();
    EXPECT_THAT(error.code, ::testing::AnyOf(ErrorCode::kProtocol, ErrorCode::kPeerGone)) << error.message;
    EXPECT_FALSE(side.ever_opened());
  }
}

TEST_F(SessionTest, RefusesLongFramesFromStrangers) {
  auto [ours, theirs] = socket_pair();
  Side side;
  accept(side, std::move(ours), config("k"));
  Stranger stranger(std::move(theirs));
  stranger.send(wire::Introduction{.note = std::string(2000, 'x')});
  EXPECT_TRUE(stranger.dropped());
  EXPECT_EQ(side.wait_closed().code, ErrorCode::kProtocol);
}

TEST_F(SessionTest, SurvivesAHandshakeThatIsCutAnywhere) {
  Bytes said;
  for (const wire::Message& message :
       {wire::Message(wire::Hello{.incarnation = 4}), wire::Message(wire::Introduction{.note = "n"})}) {
    ByteWriter(said).put(ByteView(wire::encode(message)));
  }
  for (std::size_t size = 0; size <= said.size(); ++size) {
    auto [ours, theirs] = socket_pair();
    Side side;
    accept(side, std::move(ours), config(""));
    Stranger stranger(std::move(theirs));
    stranger.send(ByteView(said).first(size));
    shutdown(stranger.fd.get(), SHUT_WR);
    EXPECT_TRUE(stranger.dropped());
    EXPECT_EQ(side.wait_closed().code, ErrorCode::kPeerGone);
    EXPECT_EQ(side.times_closed(), 1);
    EXPECT_EQ(side.ever_opened(), size == said.size());
  }
}

TEST_F(SessionTest, GivesUpAPeerThatNeverSpeaks) {
  Side dialled;
  dial(dialled, listener_.port(), config("k"), 3s);
  Stranger silent(listener_.accept());
  const Error error = dialled.wait_closed();
  EXPECT_EQ(error.code, ErrorCode::kTimedOut);
  EXPECT_THAT(error.message, HasSubstr("the peer's hello"));

  auto [ours, theirs] = socket_pair();
  Side accepted;
  accept(accepted, std::move(ours), config("k"), 100ms);
  EXPECT_EQ(accepted.wait_closed().code, ErrorCode::kTimedOut);
}

// Its machine answers, so it is slow at first, and then taken to hang.
TEST_F(SessionTest, ClosesAPeerThatFallsSilent) {
  SessionConfig quick = config("");
  quick.keepalive = 200ms;
  quick.hung = 1000ms;
  Side side;
  std::atomic<int> slow{0};
  Session::Handlers handlers = side.handlers();
  handlers.slow = [&](std::chrono::milliseconds still) { slow += still >= 200ms; };
  side.session = Session::dial(*reactor_, "127.0.0.1", listener_.port(), quick, std::move(handlers),
                               Clock::now() + kPatience);
  Stranger peer(listener_.accept());
  ASSERT_TRUE(peer.next());
  const auto start = Clock::now();
  peer.introduce();
  ASSERT_TRUE(side.wait_open());
  const Error error = side.wait_closed();
  EXPECT_EQ(error.code, ErrorCode::kPeerGone);
  EXPECT_THAT(error.message, HasSubstr("127.0.0.1"));
  EXPECT_THAT(error.message, HasSubstr("not heard of for 1000 ms, though its machine answers"));
  EXPECT_GE(Clock::now() - start, 500ms);
  EXPECT_LT(Clock::now() - start, 20s);
  EXPECT_GE(slow, 1);
}

TEST_F(SessionTest, APeerThatWasSlowGoesOn) {
  SessionConfig quick = config("");
  quick.keepalive = 200ms;
  Side side;
  std::promise<void> slow;
  std::promise<void> back;
  std::atomic<bool> told{false};
  Session::Handlers handlers = side.handlers();
  handlers.slow = [&](std::chrono::milliseconds still) {
    if (still.count() == 0) {
      back.set_value();
    } else if (!told.exchange(true)) {
      slow.set_value();
    }
  };
  side.session = Session::dial(*reactor_, "127.0.0.1", listener_.port(), quick, std::move(handlers),
                               Clock::now() + kPatience);
  Stranger peer(listener_.accept());
  ASSERT_TRUE(peer.next());
  peer.introduce();
  ASSERT_TRUE(side.wait_open());
  ASSERT_EQ(slow.get_future().wait_for(kPatience), std::future_status::ready);
  peer.send(wire::Notify{});
  ASSERT_TRUE(side.wait_messages(1));
  ASSERT_EQ(back.get_future().wait_for(kPatience), std::future_status::ready);
  EXPECT_TRUE(side.open_still());
  end({&side});
}

TEST_F(SessionTest, ClosesAPeerThatSpeaksButTakesNothing) {
  SessionConfig quick = config("");
  quick.keepalive = 2s;
  quick.hung = 6s;  // the talker must never pause for as long
  Side side;
  dial(side, listener_.port(), quick);
  Stranger peer(listener_.accept());
  ASSERT_TRUE(peer.next());
  peer.introduce();
  ASSERT_TRUE(side.wait_open());
  std::promise<void> stop;
  auto talker = std::async(std::launch::async, [&] {
    auto stopped = stop.get_future();
    while (stopped.wait_for(20ms) == std::future_status::timeout) peer.send(wire::Heartbeat{});
  });
  for (int i = 0; i < 64; ++i) side.session->send(wire::Notify{.part = Bytes(512 << 10)});
  const Error error = side.wait_closed();
  stop.set_value();
  talker.get();
  EXPECT_EQ(error.code, ErrorCode::kPeerGone);
  EXPECT_THAT(error.message, ::testing::AnyOf(HasSubstr("took nothing"), HasSubstr("timed out")));
}

// Strangers' messages come by the ten thousand; what else the thread has to do is not put off for them.
TEST_F(SessionTest, TimersRunBetweenMessages) {
  constexpr int kMessages = 40'000;
  auto [ours, theirs] = socket_pair();
  Side side;
  std::atomic<int> taken{0};
  std::atomic<int> ticks{0};
  std::promise<void> all;
  Session::Handlers handlers = side.handlers();
  handlers.message = [&](const wire::Message&) {
    const auto until = Clock::now() + 10us;  // as a look-up takes
    while (Clock::now() < until) {
    }
    if (++taken == kMessages) all.set_value();
  };
  side.session =
      Session::accept(*reactor_, std::move(ours), config(""), std::move(handlers), Clock::now() + kPatience);
  Stranger peer(std::move(theirs));
  peer.introduce();
  ASSERT_TRUE(peer.next());
  ASSERT_TRUE(side.wait_open());
  Reactor& reactor = *reactor_;
  std::function<void()> tick = [&] {
    ++ticks;
    reactor.after(5ms, tick);
  };
  reactor.post([&] { reactor.after(5ms, tick); });
  Bytes many;
  for (int i = 0; i < kMessages; ++i) ByteWriter(many).put(ByteView(wire::encode(wire::NotifyDone{1})));
  auto talker = std::async(std::launch::async, [&] {
    for (std::size_t at = 0; at < many.size();) {
      const ssize_t sent = ::send(peer.fd.get(), many.data() + at, many.size() - at, MSG_NOSIGNAL);
      if (sent <= 0) return;
      at += static_cast<std::size_t>(sent);
    }
  });
  ASSERT_EQ(all.get_future().wait_for(kPatience), std::future_status::ready);
  talker.get();
  // They take 0.4 s at least; handled by the buffer, 3000 and more passed between two looks at the timers.
  EXPECT_GE(ticks, 20);
  end({&side});
}

// How long an answer takes to make: on a slow machine a turn ends before it has gathered much.
class SlowAnswers : public SessionTest, public ::testing::WithParamInterface<std::chrono::microseconds> {};

TEST_P(SlowAnswers, ReadsNoMoreOfAPeerThatTakesNoAnswers) {
  SessionConfig patient = config("");
  patient.keepalive = 60s;
  auto [ours, theirs] = socket_pair();
  // Else the system's buffers grow, on large machines beyond all that is asked for here.
  constexpr int kBuffer = 256 << 10;
  ::setsockopt(ours.get(), SOL_SOCKET, SO_SNDBUF, &kBuffer, sizeof kBuffer);
  ::setsockopt(theirs.get(), SOL_SOCKET, SO_RCVBUF, &kBuffer, sizeof kBuffer);
  Side side;
  std::atomic<int> pauses{0};
  std::atomic<std::size_t> answered{0};
  std::atomic<Session*> session{nullptr};
  Session::Handlers handlers = side.handlers();
  handlers.message = [&](const wire::Message&) {
    const auto until = Clock::now() + GetParam();
    while (Clock::now() < until) {
    }
    ++answered;
    session.load()->send(wire::Notify{.total = 1000, .offset = 0, .part = Bytes(1000)});
  };
  handlers.paused = [&] { ++pauses; };
  side.session =
      Session::accept(*reactor_, std::move(ours), patient, std::move(handlers), Clock::now() + kPatience);
  session = side.session.get();
  Stranger peer(std::move(theirs));
  peer.introduce();
  ASSERT_TRUE(peer.next());
  ASSERT_TRUE(peer.next());
  ASSERT_TRUE(side.wait_open());
  // Asks for 20 MB, and reads nothing of it, until this side has paused.
  constexpr int kQuestions = 20'000;
  const Bytes question = wire::encode(wire::NotifyDone{1});
  const auto deadline = Clock::now() + kPatience;
  int asked = 0;
  while (pauses == 0 && answered < kQuestions && Clock::now() < deadline) {
    const auto sent = asked < kQuestions ? ::send(peer.fd.get(), question.data(), question.size(),
                                                  MSG_NOSIGNAL | MSG_DONTWAIT)
                                         : 0;
    asked += sent > 0;
    if (sent <= 0) std::this_thread::yield();
  }
  EXPECT_GE(pauses, 1);
  EXPECT_LT(answered * 1000, 12U << 20) << "kept for a peer that does not listen";
  // It reads on when its answers are taken.
  const auto enough = static_cast<std::size_t>(asked);
  for (std::size_t got = 0; got < enough;) {
    const auto message = peer.next();
    ASSERT_TRUE(message);
    got += std::holds_alternative<wire::Notify>(*message);
  }
  EXPECT_EQ(answered, enough);
  EXPECT_TRUE(side.open_still());
  end({&side});
}

INSTANTIATE_TEST_SUITE_P(Answers, SlowAnswers, ::testing::Values(0us, 50us));

TEST_F(SessionTest, DeliversThePeersLastWordsBeforeItsEnd) {
  for (int round = 0; round < 20; ++round) {
    Side side;
    dial(side, listener_.port(), config(""));
    Stranger peer(listener_.accept());
    ASSERT_TRUE(peer.next());
    peer.introduce();
    ASSERT_TRUE(peer.next());
    peer.send(wire::Bye{"last words"});
    const linger reset{1, 0};
    if (round % 2 == 0) setsockopt(peer.fd.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    peer.fd.reset();
    EXPECT_EQ(side.wait_closed().code, ErrorCode::kPeerGone);
    ASSERT_EQ(side.messages().size(), 1U);
    EXPECT_EQ(std::get<wire::Bye>(side.messages()[0]).reason, "last words");
  }
}

TEST_F(SessionTest, RefusesHandshakeMessagesOnceOpen) {
  for (const wire::Message& message : {wire::Message(wire::Hello{}), wire::Message(wire::Introduction{})}) {
    auto [ours, theirs] = socket_pair();
    Side side;
    accept(side, std::move(ours), config(""));
    Stranger peer(std::move(theirs));
    peer.introduce();
    peer.send(message);
    EXPECT_EQ(side.wait_closed().code, ErrorCode::kProtocol);
    EXPECT_TRUE(side.ever_opened());
  }
}

}  // namespace
}  // namespace p2p::engine
