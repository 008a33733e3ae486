// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/session/resume_attempt.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <future>
#include <memory>
#include <optional>
#include <string>

#include "base/error.h"
#include "support/session_ends.h"
#include "support/sockets.h"
#include "wire/encode.h"

namespace p2p::engine {
namespace {

using ::testing::HasSubstr;

/// One attempt at each end of a connection over loopback. The token is the same; the secrets are what a test
/// says.
class ResumeAttemptTest : public SessionTest {
 protected:
  using Outcome = Result<ResumeAttempt::Proven>;

  ResumeAttemptTest()
      : dialled_(p2p::testing::Socket::connect("127.0.0.1", listening_.port())),
        accepted_(listening_.accept()) {}

  ResumeAttempt::Terms terms(Role role, std::byte secret, bool sealed) const {
    ResumeAttempt::Terms made{.role = role, .sealed = sealed, .hung = kPatience};
    made.token.fill(std::byte{7});
    made.secret.fill(secret);
    return made;
  }

  /// Begins one; nobody calls back after `end`.
  std::future<Outcome> start(const ResumeAttempt::Terms& terms, const p2p::testing::Socket& socket) {
    auto attempt = std::make_shared<ResumeAttempt>(*reactor_, terms, UniqueFd(::dup(socket.fd())));
    auto outcome = std::make_shared<std::promise<Outcome>>();
    reactor_->post([attempt, outcome] {
      attempt->start(1, 5, [outcome](Outcome proven) { outcome->set_value(std::move(proven)); });
    });
    attempts_.push_back(std::move(attempt));
    return outcome->get_future();
  }

  static Outcome get(std::future<Outcome> outcome) {
    if (outcome.wait_for(kPatience) != std::future_status::ready) return fail(ErrorCode::kTimedOut, "no end");
    return outcome.get();
  }

  void TearDown() override {
    std::promise<void> stopped;
    reactor_->post([&] {
      for (const auto& attempt : attempts_) attempt->stop();
      stopped.set_value();
    });
    stopped.get_future().wait();
  }

  p2p::testing::Listener listening_;
  p2p::testing::Socket dialled_;
  p2p::testing::Socket accepted_;
  std::vector<std::shared_ptr<ResumeAttempt>> attempts_;
};

class Sealed : public ResumeAttemptTest, public ::testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(InTls, Sealed, ::testing::Bool());

TEST_P(Sealed, TheSecretOfTheSessionIsProof) {
  auto connector = start(terms(Role::kConnector, std::byte{1}, GetParam()), dialled_);
  auto acceptor = get(start(terms(Role::kAcceptor, std::byte{1}, GetParam()), accepted_));
  ASSERT_TRUE(acceptor) << acceptor.error().message;
  EXPECT_EQ(acceptor->attempt, 1U);
  EXPECT_EQ(acceptor->handled, 5U);
}

// Whoever overheard the token does not know the secret. The attempt's number is new.
TEST_P(Sealed, ATokenIsNoProof) {
  auto connector = start(terms(Role::kConnector, std::byte{2}, GetParam()), dialled_);
  const auto acceptor = get(start(terms(Role::kAcceptor, std::byte{1}, GetParam()), accepted_));
  ASSERT_FALSE(acceptor);
  EXPECT_EQ(acceptor.error().code, ErrorCode::kPermissionDenied) << acceptor.error().message;
}

TEST_F(ResumeAttemptTest, AnAcceptorThatKnowsTheTokenAloneIsRefused) {
  auto connector = start(terms(Role::kConnector, std::byte{1}, false), dialled_);
  const auto say = [&](const wire::Message& message) {
    const Bytes frame = wire::encode(message);
    ASSERT_TRUE(accepted_.send({reinterpret_cast<const char*>(frame.data()), frame.size()}));
  };
  ASSERT_NE(accepted_.receive_some(), "");  // Resume
  say(wire::ResumeAnswer{.known = 1});
  say(wire::Resumed{});
  const auto outcome = get(std::move(connector));
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().code, ErrorCode::kPermissionDenied);
  EXPECT_THAT(outcome.error().message, HasSubstr("the session's secret"));
}

}  // namespace
}  // namespace p2p::engine
