// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Sessions whose connections are reset on the way.
#include <gmock/gmock.h>

#include <atomic>
#include <future>
#include <random>
#include <thread>

#include "engine/listen/listener.h"
#include "support/eventually.h"
#include "support/middlebox.h"
#include "support/process.h"
#include "support/raw_peer.h"
#include "support/session_ends.h"

namespace p2p::engine {
namespace {

using namespace std::chrono_literals;
using p2p::testing::eventually;
using p2p::testing::Middlebox;
using ::testing::HasSubstr;

/// Where a session is accepted, as an endpoint does it.
class Port {
 public:
  Port(Reactor& reactor, Side& side, SessionConfig config) : reactor_(reactor), side_(side) {
    listener_ = std::make_shared<Listener>(
        reactor, Listener::Settings{{64, 64}, 0, kPatience},
        [this, config](UniqueFd socket, Strangers::Id) { return welcome(std::move(socket), config); });
    port_ = listener_->open(socket::Address::parse("127.0.0.1", 0).value()).value().port();
    reactor.post([listener = listener_] { listener->start(); });
  }
  ~Port() {
    std::promise<void> closed;
    reactor_.post([&] {
      listener_->close();
      closed.set_value();
    });
    closed.get_future().wait();
  }

  std::uint16_t port() const { return port_; }
  std::uint64_t refused() const { return listener_->refused(); }

 private:
  Strangers::Drop welcome(UniqueFd socket, SessionConfig config) {
    config.port = listener_;
    side_.session = Session::accept(reactor_, std::move(socket), std::move(config), side_.handlers(),
                                    Clock::now() + kPatience);
    return [](Strangers::Id) {};
  }

  Reactor& reactor_;
  Side& side_;
  std::shared_ptr<Listener> listener_;
  std::uint16_t port_ = 0;
};

/// The connection began with a Resume.
bool goes_on(const Middlebox::Said& said) { return said.size() > 4 && said[4] == std::byte{33}; }

/// Two sessions with a middlebox between them. The parameter is a key, or none.
class ResumeTest : public SessionTest, public ::testing::WithParamInterface<const char*> {
 protected:
  SessionConfig side_config(Incarnation incarnation) const {
    SessionConfig made = config(GetParam(), incarnation);
    made.keepalive = keepalive_;
    made.hung = std::max(made.hung, keepalive_);
    return made;
  }

  /// Opens a session whose connector is another process of this machine, which says nothing, and breaks its
  /// connection; none can be made.
  p2p::testing::Process break_with_a_process() {
    auto process = p2p::testing::Process::spawn({"sleep", "1000"}).value();
    ProcessId its = this_process().value();
    its.pid = static_cast<std::uint64_t>(process.pid());
    its.started = start_of(its.pid).value();
    open(its);
    middlebox_->hold(true);
    EXPECT_GE(middlebox_->reset(), 1);
    return process;
  }

  void open(std::optional<ProcessId> connecting = std::nullopt) {
    SessionConfig accepting = side_config(8);
    accepting.process = own_process();
    port_.emplace(*reactor_, acceptor_, accepting);
    middlebox_.emplace(port_->port());
    SessionConfig dialling = side_config(7);
    dialling.process = connecting ? connecting : own_process();
    dial(connector_, middlebox_->port(), dialling);
    ASSERT_TRUE(connector_.wait_open()) << connector_.wait_closed().message;
    ASSERT_TRUE(acceptor_.wait_open());
    // Both have said that they may go on: messages in both directions are behind that.
    acceptor_.session->send(wire::NotifyDone{1});
    ASSERT_TRUE(connector_.wait_messages(1));
    connector_.session->send(wire::NotifyDone{1});
    ASSERT_TRUE(acceptor_.wait_messages(1));
  }

  static std::optional<ProcessId> own_process() { return this_process().value(); }

  void TearDown() override {
    reactor_->post([this] {
      for (Side* side : {&connector_, &acceptor_}) {
        if (side->session) side->session->drop({ErrorCode::kCancelled, "the test is over"});
      }
    });
    if (connector_.session) connector_.wait_closed();
    if (acceptor_.session) acceptor_.wait_closed();
    port_.reset();
    middlebox_.reset();
    end({&connector_, &acceptor_});
  }

  /// Each hears the other.
  void expect_both_hear() {
    const std::size_t here = connector_.messages().size();
    const std::size_t there = acceptor_.messages().size();
    connector_.session->send(wire::NotifyDone{2});
    acceptor_.session->send(wire::NotifyDone{2});
    EXPECT_TRUE(connector_.wait_messages(here + 1)) << connector_.wait_closed().message;
    EXPECT_TRUE(acceptor_.wait_messages(there + 1)) << acceptor_.wait_closed().message;
  }

  std::chrono::milliseconds keepalive_ = 20s;  // how loaded the machine is decides nothing
  Side connector_;
  Side acceptor_;
  std::optional<Port> port_;
  std::optional<Middlebox> middlebox_;
};

INSTANTIATE_TEST_SUITE_P(Keys, ResumeTest, ::testing::Values("", "a key"));

TEST_P(ResumeTest, GoesOnOverAnotherConnection) {
  open();
  for (int round = 0; round != 5; ++round) {
    EXPECT_GE(middlebox_->reset(), 1);
    expect_both_hear();
  }
  EXPECT_TRUE(connector_.open_still());
  EXPECT_TRUE(acceptor_.open_still());
}

// Many sizes both ways, and resets at any moment, also of connections that have only begun.
TEST_P(ResumeTest, NothingIsLostOrComesTwice) {
  for (unsigned seed = 1; seed != 6; ++seed) {
    SCOPED_TRACE(seed);
    if (seed == 1) open();
    constexpr std::size_t kMessages = 600;
    const std::size_t here = connector_.messages().size();
    const std::size_t there = acceptor_.messages().size();
    const auto talk = [&](Side& side, unsigned lot) {
      std::mt19937 random(lot);
      for (std::size_t i = 0; i != kMessages; ++i) {
        const std::size_t size = random() % 10 == 0 ? random() % 150'000 : random() % 300;
        side.session->send(wire::Notify{.notification = i, .total = size, .part = Bytes(size, std::byte{1})});
        if (random() % 8 == 0) std::this_thread::yield();
      }
    };
    std::atomic<bool> over{false};
    auto trouble = std::async(std::launch::async, [&] {
      std::mt19937 random(seed);
      while (!over) {
        middlebox_->reset();
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 30'000));
      }
    });
    auto left = std::async(std::launch::async, [&] { talk(connector_, 2 * seed); });
    auto right = std::async(std::launch::async, [&] { talk(acceptor_, 2 * seed + 1); });
    left.get();
    right.get();
    std::this_thread::yield();
    over = true;
    trouble.get();
    for (auto& [side, before] : {std::pair<Side&, std::size_t>(connector_, here), {acceptor_, there}}) {
      ASSERT_TRUE(side.wait_messages(before + kMessages)) << side.wait_closed().message;
      const auto messages = side.messages();
      ASSERT_EQ(messages.size(), before + kMessages);
      for (std::size_t i = 0; i != kMessages; ++i) {
        ASSERT_EQ(std::get<wire::Notify>(messages[before + i]).notification, i);
      }
    }
  }
}

TEST_P(ResumeTest, WhatIsSentMeanwhileComesOnce) {
  open();
  middlebox_->hold(true);
  EXPECT_GE(middlebox_->reset(), 1);
  for (std::uint64_t i = 0; i != 100; ++i) {
    connector_.session->send(wire::RegionRevoked{i});
    acceptor_.session->send(wire::RegionRevoked{i});
  }
  middlebox_->hold(false);
  for (Side* side : {&connector_, &acceptor_}) {
    ASSERT_TRUE(side->wait_messages(101));
    for (std::uint64_t i = 0; i != 100; ++i) {
      EXPECT_EQ(std::get<wire::RegionRevoked>(side->messages()[i + 1]).revocation, i);
    }
  }
}

// Last messages wait for the connection, too.
TEST_P(ResumeTest, ClosesOnceItHasSaidAll) {
  open();
  middlebox_->hold(true);
  EXPECT_GE(middlebox_->reset(), 1);
  ASSERT_TRUE(eventually([&] { return middlebox_->somebody_waits(); }));
  connector_.session->send(wire::Bye{"last words"});
  connector_.session->close({ErrorCode::kCancelled, "enough"});
  middlebox_->hold(false);
  EXPECT_EQ(acceptor_.wait_closed().code, ErrorCode::kPeerGone);
  const auto said = acceptor_.messages();
  ASSERT_EQ(said.size(), 2U);
  EXPECT_EQ(std::get<wire::Bye>(said[1]).reason, "last words");
  EXPECT_EQ(connector_.wait_closed().message, "enough");
}

TEST_P(ResumeTest, APortThatRefusesIsTheEnd) {
  open();
  const auto start = Clock::now();
  middlebox_->refuse();
  EXPECT_GE(middlebox_->reset(), 1);
  const Error error = connector_.wait_closed();
  EXPECT_EQ(error.code, ErrorCode::kPeerGone);
  EXPECT_THAT(error.message, HasSubstr("refused"));
  EXPECT_LT(Clock::now() - start, keepalive_);
  EXPECT_EQ(connector_.times_closed(), 1);
}

TEST_P(ResumeTest, AnotherIncarnationAtThePortIsTheEnd) {
  open();
  Side other;
  {
    Port there(*reactor_, other, side_config(9));
    middlebox_->lead_to(there.port());
    const auto start = Clock::now();
    EXPECT_GE(middlebox_->reset(), 1);
    const Error error = connector_.wait_closed();
    EXPECT_EQ(error.code, ErrorCode::kPeerGone);
    EXPECT_THAT(error.message, HasSubstr("does not know this session"));
    EXPECT_LT(Clock::now() - start, keepalive_);
  }
  EXPECT_FALSE(other.ever_opened());
}

TEST_P(ResumeTest, WaitsForItsPeerForTheKeepaliveTime) {
  keepalive_ = 600ms;
  ProcessId elsewhere = this_process().value();
  elsewhere.boot[0] ^= std::byte{1};
  open(elsewhere);
  middlebox_->hold(true);
  const auto start = Clock::now();
  EXPECT_GE(middlebox_->reset(), 1);
  const Error error = acceptor_.wait_closed();
  EXPECT_EQ(error.code, ErrorCode::kPeerGone);
  EXPECT_THAT(error.message, HasSubstr("did not connect again within 600 ms"));
  EXPECT_GE(Clock::now() - start, 500ms);
}

// It may be stopped: its machine is this one, and nothing else is heard of it.
TEST_P(ResumeTest, AProcessOfThisMachineThatLivesIsWaitedForLonger) {
  keepalive_ = 300ms;
  auto process = break_with_a_process();
  std::this_thread::sleep_for(5 * keepalive_);  // the fault itself
  EXPECT_TRUE(acceptor_.open_still());
  process.kill_now();
  EXPECT_THAT(acceptor_.wait_closed().message, HasSubstr("its process has ended"));
}

TEST_P(ResumeTest, AProcessOfThisMachineThatEndsIsTheEnd) {
  auto process = break_with_a_process();
  process.kill_now();
  const auto start = Clock::now();
  const Error error = acceptor_.wait_closed();
  EXPECT_EQ(error.code, ErrorCode::kPeerGone);
  EXPECT_THAT(error.message, HasSubstr("its process has ended"));
  EXPECT_LT(Clock::now() - start, keepalive_ / 2);
}

// Whoever has heard all that was said can do no harm with it.
TEST_P(ResumeTest, ARepeatedAttemptChangesNothing) {
  open();
  EXPECT_GE(middlebox_->reset(), 1);
  expect_both_hear();
  auto said = middlebox_->said();
  const std::size_t before = said.size();
  std::erase_if(said, [](const auto& one) { return !goes_on(one); });
  ASSERT_FALSE(said.empty());
  for (int i = 0; i != 20; ++i) {
    for (const auto& messages : said) {
      auto thief = p2p::testing::RawPeer::dial(port_->port());
      thief.say(messages);
      if (i % 2 == 0) continue;
      EXPECT_TRUE(thief.dropped());
    }
    expect_both_hear();
  }
  EXPECT_EQ(middlebox_->said().size(), before) << "the connector had no need to dial again";
}

TEST_P(ResumeTest, StrangersDoNotKeepThePeerOut) {
  open();
  EXPECT_GE(middlebox_->reset(), 1);
  expect_both_hear();
  const auto heard = middlebox_->said();
  const auto resume = std::ranges::find_if(heard, goes_on);
  ASSERT_NE(resume, heard.end());
  // It is what the peer has said, and nothing follows.
  std::vector<p2p::testing::RawPeer> strangers;
  for (int i = 0; i != 16; ++i) {
    strangers.push_back(p2p::testing::RawPeer::dial(port_->port()));
    strangers.back().say(ByteView(*resume).first(std::min(resume->size(), wire::Resume::kFrameBytes)));
  }
  EXPECT_GE(middlebox_->reset(), 1);
  expect_both_hear();
}

}  // namespace
}  // namespace p2p::engine
