// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/session/resume_acceptor.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "support/session_ends.h"
#include "support/sockets.h"
#include "wire/messages.h"

namespace p2p::engine {
namespace {

using p2p::testing::Socket;

/// The test hands on what would come to an endpoint's port.
class FakePort : public StreamPort {
 public:
  Result<std::uint16_t> open_at(const std::string& /*address*/) override { return std::uint16_t{0}; }
  void expect(const Token& /*token*/, Take take) override { take_ = std::move(take); }
  void forget(const Token& /*token*/) override {}
  void hand_on(UniqueFd socket) const { take_(std::move(socket)); }

 private:
  Take take_;
};

/// One acceptor, connectors whose words pass through the test, and whoever overhears them. The parameter: the
/// session is within TLS.
class ResumeAcceptorTest : public SessionTest, public ::testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    SessionTest::SetUp();
    acceptor_ = std::make_shared<ResumeAcceptor>(
        *reactor_, port_, terms(Role::kAcceptor),
        [this](ResumeAttempt::Proven proven) { proven_.set_value(proven.attempt); });
    on_reactor([this] { acceptor_->open(); });
  }

  void TearDown() override {
    on_reactor([this] {
      for (const auto& attempt : attempts_) attempt->stop();
      acceptor_->close();
    });
  }

  ResumeAttempt::Terms terms(Role role) const {
    ResumeAttempt::Terms made{.role = role, .sealed = GetParam(), .hung = kPatience};
    made.token.fill(std::byte{7});
    made.secret.fill(std::byte{1});
    return made;
  }

  void on_reactor(const std::function<void()>& task) {
    std::promise<void> done;
    reactor_->post([&] {
      task();
      done.set_value();
    });
    done.get_future().wait();
  }

  /// A connector of this attempt; what it says comes to `heard`.
  void start(std::uint32_t attempt) {
    const Socket dials = Socket::connect("127.0.0.1", listening_.port());
    connector_ = listening_.accept();
    auto made =
        std::make_shared<ResumeAttempt>(*reactor_, terms(Role::kConnector), UniqueFd(::dup(dials.fd())));
    reactor_->post([made, attempt] { made->start(attempt, 5, [](const auto&) {}); });
    attempts_.push_back(std::move(made));
  }

  static std::string read(Socket& socket, std::size_t bytes) {
    std::string all;
    while (all.size() < bytes) {
      const std::string some = socket.receive_some();
      if (some.empty()) break;
      all += some;
    }
    return all;
  }

  /// A connection to the port that says this.
  Socket say(const std::string& words) {
    Socket socket = Socket::connect("127.0.0.1", listening_.port());
    const Socket there = listening_.accept();
    EXPECT_TRUE(socket.send(words));
    pollfd watched{there.fd(), POLLIN, 0};
    EXPECT_EQ(::poll(&watched, 1, 20000), 1);
    port_->hand_on(UniqueFd(::dup(there.fd())));
    return socket;
  }

  /// Both ways, until the acceptor has proof.
  std::uint32_t join(Socket& onward) {
    auto proven = proven_.get_future();
    const auto until = Clock::now() + kPatience;
    while (Clock::now() < until && proven.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      pollfd both[2] = {{connector_.fd(), POLLIN, 0}, {onward.fd(), POLLIN, 0}};
      if (::poll(both, 2, 20) <= 0) continue;
      if (both[0].revents != 0 && !pass(connector_, onward)) break;
      if (both[1].revents != 0 && !pass(onward, connector_)) break;
    }
    if (proven.wait_for(std::chrono::seconds(2)) != std::future_status::ready) return 0;
    return proven.get();
  }

  static bool pass(Socket& from, Socket& to) {
    const std::string words = from.receive_some();
    return !words.empty() && to.send(words);
  }

  static constexpr std::size_t kAnswerBytes = 4 + 2 + 1 + 32;

  p2p::testing::Listener listening_;
  const std::shared_ptr<FakePort> port_ = std::make_shared<FakePort>();
  std::promise<std::uint32_t> proven_;
  std::shared_ptr<ResumeAcceptor> acceptor_;
  std::vector<std::shared_ptr<ResumeAttempt>> attempts_;
  Socket connector_;
};
INSTANTIATE_TEST_SUITE_P(InTls, ResumeAcceptorTest, ::testing::Bool());

// The path is long: what the peer says is overheard and comes again before it has its answer.
TEST_P(ResumeAcceptorTest, CopiesDoNotTakeThePlaceOfWhoHasBegun) {
  start(1);
  const std::string resume = read(connector_, wire::Resume::kFrameBytes);
  Socket onward = say(resume);
  const std::string answer = read(onward, kAnswerBytes);
  std::vector<Socket> copies;
  for (int i = 0; i != 32; ++i) copies.push_back(say(resume));
  EXPECT_EQ(copies.back().receive_some(), "") << "there is no place for it";
  ASSERT_TRUE(connector_.send(answer));
  EXPECT_EQ(join(onward), 1U);
}

TEST_P(ResumeAcceptorTest, ANewAttemptFindsAPlaceWhoeverRepeatsTheOldOnes) {
  start(1);
  const std::string first = read(connector_, wire::Resume::kFrameBytes);
  std::vector<Socket> copies;
  for (int i = 0; i != 32; ++i) copies.push_back(say(first));
  start(2);
  Socket onward = say(read(connector_, wire::Resume::kFrameBytes));
  const std::string answer = read(onward, kAnswerBytes);
  for (int i = 0; i != 32; ++i) {
    copies.push_back(say(first));
    EXPECT_EQ(copies.back().receive_some(), "") << "what was heard is worth nothing";
  }
  ASSERT_TRUE(connector_.send(answer));
  EXPECT_EQ(join(onward), 2U);
}

TEST_P(ResumeAcceptorTest, WhoKnowsTheTokenAloneGetsNoAnswer) {
  start(1);
  std::string resume = read(connector_, wire::Resume::kFrameBytes);
  resume[6 + 16] = 9;  // another attempt
  EXPECT_EQ(say(resume).receive_some(), "");
}

}  // namespace
}  // namespace p2p::engine
