// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <string>

#include "drivers/crypto/crypto.h"
#include "wire/encode.h"

namespace p2p::engine {
namespace {

using testing::HasSubstr;

Bytes key(std::string_view text) {
  const ByteView view = as_bytes(text);
  return {view.begin(), view.end()};
}

Handshake::Setup setup(Role role, std::string_view key_text) {
  Handshake::Setup setup;
  setup.role = role;
  setup.hello.incarnation = role == Role::kConnector ? 11 : 22;
  EXPECT_TRUE(crypto::random_bytes(setup.hello.nonce));
  setup.key = key(key_text);
  setup.introduction.note = role == Role::kConnector ? "from the connector" : "from the acceptor";
  setup.introduction.transports = {{"tcp", ""}, {"cma", "not on this machine"}};
  return setup;
}

/// Two sides and the wire between them.
struct Pair {
  Pair(Handshake::Setup connecting, Handshake::Setup accepting)
      : connector(std::move(connecting)), acceptor(std::move(accepting)) {
    put(connector.start(), to_acceptor, connector_error);
    EXPECT_TRUE(acceptor.start().send.empty());
  }

  static void put(Handshake::Step step, std::deque<wire::Message>& to, std::optional<Error>& error) {
    for (wire::Message& message : step.send) to.push_back(std::move(message));
    if (step.error) error = step.error;
  }

  /// Delivers until nothing is under way. Who failed takes nothing more.
  void run() {
    while (!to_acceptor.empty() || !to_connector.empty()) {
      deliver(to_acceptor, acceptor, to_connector, acceptor_error);
      deliver(to_connector, connector, to_acceptor, connector_error);
    }
  }

  static void deliver(std::deque<wire::Message>& from, Handshake& side, std::deque<wire::Message>& to,
                      std::optional<Error>& error) {
    if (from.empty()) return;
    wire::Message message = std::move(from.front());
    from.pop_front();
    if (!error) put(side.take(std::move(message)), to, error);
  }

  Handshake connector;
  Handshake acceptor;
  std::deque<wire::Message> to_acceptor;
  std::deque<wire::Message> to_connector;
  std::optional<Error> connector_error;
  std::optional<Error> acceptor_error;
};

Pair make_pair(std::string_view connector_key, std::string_view acceptor_key) {
  return {setup(Role::kConnector, connector_key), setup(Role::kAcceptor, acceptor_key)};
}

void expect_done(const Pair& pair) {
  ASSERT_FALSE(pair.connector_error) << pair.connector_error->message;
  ASSERT_FALSE(pair.acceptor_error) << pair.acceptor_error->message;
  ASSERT_TRUE(pair.connector.done());
  ASSERT_TRUE(pair.acceptor.done());
}

TEST(Handshake, IntroducesTwoSidesWithAndWithoutKeys) {
  for (const std::string_view text :
       {"", "k", "a pre-shared key that is longer than a block of the hash function"}) {
    Pair pair = make_pair(text, text);
    pair.run();
    expect_done(pair);
    EXPECT_EQ(pair.connector.peer_hello().incarnation, 22U);
    EXPECT_EQ(pair.acceptor.peer_hello().incarnation, 11U);
    EXPECT_EQ(pair.connector.peer_introduction().note, "from the acceptor");
    EXPECT_EQ(pair.acceptor.peer_introduction().note, "from the connector");
    EXPECT_EQ(pair.acceptor.peer_introduction().transports.size(), 2U);
    EXPECT_EQ(pair.connector.secret(), pair.acceptor.secret());
  }
}

TEST(Handshake, GivesEachSessionItsOwnSecret) {
  Pair one = make_pair("key", "key");
  Pair two = make_pair("key", "key");
  one.run();
  two.run();
  expect_done(one);
  expect_done(two);
  EXPECT_NE(one.connector.secret(), two.connector.secret());
}

TEST(Handshake, RefusesAWrongKeyOnBothSides) {
  Pair pair = make_pair("right", "wrong");
  pair.run();
  ASSERT_TRUE(pair.acceptor_error);
  EXPECT_EQ(pair.acceptor_error->code, ErrorCode::kPermissionDenied);
  EXPECT_THAT(pair.acceptor_error->message, HasSubstr("different keys"));
  ASSERT_TRUE(pair.connector_error);
  EXPECT_EQ(pair.connector_error->code, ErrorCode::kPermissionDenied);
  EXPECT_THAT(pair.connector_error->message, HasSubstr("the peer refused: "));
  EXPECT_THAT(pair.connector_error->message, HasSubstr("different keys"));
}

TEST(Handshake, NamesWhoHasAKeyIfOneSideHasNone) {
  for (const bool connector_has : {true, false}) {
    Pair pair = connector_has ? make_pair("key", "") : make_pair("", "key");
    pair.run();
    for (const auto& [error, mine, theirs] :
         {std::tuple(pair.connector_error, connector_has ? "a key" : "no key",
                     connector_has ? "no key" : "a key"),
          std::tuple(pair.acceptor_error, connector_has ? "no key" : "a key",
                     connector_has ? "a key" : "no key")}) {
      ASSERT_TRUE(error);
      EXPECT_EQ(error->code, ErrorCode::kPermissionDenied);
      EXPECT_THAT(error->message, HasSubstr(std::string("this side has ") + mine));
      EXPECT_THAT(error->message, HasSubstr(std::string("the peer has ") + theirs));
    }
    EXPECT_FALSE(pair.connector.done());
    EXPECT_FALSE(pair.acceptor.done());
  }
}

TEST(Handshake, NamesBothVersionsIfTheyDiffer) {
  Handshake acceptor(setup(Role::kAcceptor, "key"));
  const Handshake::Step step = acceptor.take(wire::Hello{.version = 9});
  ASSERT_TRUE(step.error);
  EXPECT_EQ(step.error->code, ErrorCode::kUnavailable);
  EXPECT_THAT(step.error->message, HasSubstr("this side speaks 3, the peer 9"));
  // The connector learns it from the hello and, in words, from the bye.
  ASSERT_EQ(step.send.size(), 2U);
  EXPECT_EQ(std::get<wire::Hello>(step.send[0]).version, wire::kVersion);
  EXPECT_THAT(std::get<wire::Bye>(step.send[1]).reason, HasSubstr("versions differ"));
}

TEST(Handshake, TellsNothingBeforeTheConnectorHasSpokenAndProvenItself) {
  Handshake acceptor(setup(Role::kAcceptor, "key"));
  EXPECT_TRUE(acceptor.start().send.empty());
  wire::Hello hello{.incarnation = 5, .authenticated = 1};
  const Handshake::Step step = acceptor.take(hello);
  ASSERT_FALSE(step.error);
  ASSERT_EQ(step.send.size(), 1U);
  EXPECT_TRUE(std::holds_alternative<wire::Hello>(step.send[0]));
  const Handshake::Step forged = acceptor.take(wire::Proof{});
  ASSERT_TRUE(forged.error);
  for (const wire::Message& message : forged.send) {
    EXPECT_TRUE(std::holds_alternative<wire::Bye>(message)) << wire::name(message);
  }
}

TEST(Handshake, RefusesAReplayedConversation) {
  Handshake::Setup connecting = setup(Role::kConnector, "key");
  Pair pair(connecting, setup(Role::kAcceptor, "key"));
  std::vector<wire::Message> overheard;
  while (!pair.to_acceptor.empty() || !pair.to_connector.empty()) {
    for (const wire::Message& message : pair.to_acceptor) overheard.push_back(message);
    Pair::deliver(pair.to_acceptor, pair.acceptor, pair.to_connector, pair.acceptor_error);
    while (!pair.to_connector.empty()) {
      Pair::deliver(pair.to_connector, pair.connector, pair.to_acceptor, pair.connector_error);
    }
  }
  expect_done(pair);
  Handshake again(setup(Role::kAcceptor, "key"));
  std::optional<Error> error;
  for (const wire::Message& message : overheard) {
    const Handshake::Step step = again.take(message);
    if (step.error) {
      error = step.error;
      break;
    }
  }
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, ErrorCode::kPermissionDenied);
  EXPECT_FALSE(again.done());
}

TEST(Handshake, RefusesItsOwnHelloAndProofReflected) {
  Handshake connector(setup(Role::kConnector, "key"));
  const Handshake::Step start = connector.start();
  EXPECT_TRUE(connector.take(start.send.at(0)).error);

  // With another hello but the connector's own proof sent back.
  Handshake other(setup(Role::kConnector, "key"));
  other.start();
  wire::Hello hello{.incarnation = 5, .authenticated = 1};
  const Handshake::Step proof = other.take(hello);
  ASSERT_FALSE(proof.error);
  const Handshake::Step reflected = other.take(proof.send.at(0));
  ASSERT_TRUE(reflected.error);
  EXPECT_EQ(reflected.error->code, ErrorCode::kPermissionDenied);
}

TEST(Handshake, BindsIncarnationsIntoTheProof) {
  Pair pair = make_pair("key", "key");
  // Someone in between changes who the connector claims to be.
  std::get<wire::Hello>(pair.to_acceptor.front()).incarnation = 99;
  pair.run();
  ASSERT_TRUE(pair.acceptor_error);
  EXPECT_EQ(pair.acceptor_error->code, ErrorCode::kPermissionDenied);
}

TEST(Handshake, RefusesMessagesOutOfTurn) {
  for (const wire::Message& message :
       {wire::Message(wire::Proof{}), wire::Message(wire::Introduction{}), wire::Message(wire::Heartbeat{}),
        wire::Message(wire::RegionQuery{})}) {
    Handshake acceptor(setup(Role::kAcceptor, "key"));
    const Handshake::Step step = acceptor.take(message);
    ASSERT_TRUE(step.error) << wire::name(message);
    EXPECT_EQ(step.error->code, ErrorCode::kProtocol);
    EXPECT_TRUE(step.send.empty());
    Handshake late(setup(Role::kAcceptor, "key"));
    EXPECT_FALSE(late.take(wire::Hello{.authenticated = 1}).error);
    const bool in_turn = std::holds_alternative<wire::Proof>(message);
    const Handshake::Step next = late.take(message);
    ASSERT_TRUE(next.error) << wire::name(message);
    EXPECT_EQ(next.error->code, in_turn ? ErrorCode::kPermissionDenied : ErrorCode::kProtocol);
  }
}

TEST(Handshake, TakesLongFramesOnlyFromWhoHasProvenItself) {
  Handshake acceptor(setup(Role::kAcceptor, "key"));
  EXPECT_EQ(acceptor.max_frame_bytes(), Handshake::kStrangerFrameBytes);
  EXPECT_FALSE(acceptor.take(wire::Hello{.authenticated = 1}).error);
  EXPECT_EQ(acceptor.max_frame_bytes(), Handshake::kStrangerFrameBytes);
  Pair pair = make_pair("key", "key");
  pair.run();
  EXPECT_EQ(pair.acceptor.max_frame_bytes(), wire::kMaxFrameBytes);
}

TEST(Handshake, ShowsAPeersReasonWithoutItsControlCharacters) {
  Handshake connector(setup(Role::kConnector, ""));
  connector.start();
  const Handshake::Step step = connector.take(wire::Bye{"no\n\x1b[31m" + std::string(1000, 'x')});
  ASSERT_TRUE(step.error);
  EXPECT_THAT(step.error->message, HasSubstr("the peer refused: no??[31mxx"));
  EXPECT_LT(step.error->message.size(), 400U);
}

TEST(Handshake, RefusesANoteThatIsTooLong) {
  Handshake::Setup talkative = setup(Role::kConnector, "");
  talkative.introduction.note.resize(Handshake::kMaxNoteBytes + 1);
  Pair pair(std::move(talkative), setup(Role::kAcceptor, ""));
  pair.run();
  ASSERT_TRUE(pair.acceptor_error);
  EXPECT_EQ(pair.acceptor_error->code, ErrorCode::kProtocol);
}

}  // namespace
}  // namespace p2p::engine
