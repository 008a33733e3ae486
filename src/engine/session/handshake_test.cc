// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/session/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <string>

#include "base/error.h"
#include "drivers/crypto/crypto.h"
#include "wire/encode.h"

namespace p2p::engine {
namespace {

using ::testing::HasSubstr;

constexpr auto kNone = wire::Proof::kNone;
constexpr auto kKey = wire::Proof::kKey;
constexpr auto kCertificate = wire::Proof::kCertificate;

Handshake::Setup setup(Role role, wire::Proof proof) {
  Handshake::Setup setup;
  setup.role = role;
  setup.hello.incarnation = role == Role::kConnector ? 11 : 22;
  setup.hello.proof = static_cast<std::uint8_t>(proof);
  EXPECT_TRUE(crypto::random_bytes(setup.hello.nonce));
  setup.introduction.note = role == Role::kConnector ? "from the connector" : "from the acceptor";
  setup.introduction.transports = {{"tcp", ""}, {"cma", "not on this machine"}};
  return setup;
}

/// Two sides and the wire between them. TLS is no more here than that each side is told who the other is.
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
      if (!connector.sealing() || !acceptor.sealing()) continue;
      put(connector.sealed(identity), to_acceptor, connector_error);
      put(acceptor.sealed(identity), to_connector, acceptor_error);
    }
  }

  static void deliver(std::deque<wire::Message>& from, Handshake& side, std::deque<wire::Message>& to,
                      std::optional<Error>& error) {
    if (from.empty()) return;
    wire::Message message = std::move(from.front());
    from.pop_front();
    if (!error) put(side.take(std::move(message)), to, error);
  }

  std::string identity = "decode-1";
  Handshake connector;
  Handshake acceptor;
  std::deque<wire::Message> to_acceptor;
  std::deque<wire::Message> to_connector;
  std::optional<Error> connector_error;
  std::optional<Error> acceptor_error;
};

Pair make_pair(wire::Proof connector, wire::Proof acceptor) {
  return {setup(Role::kConnector, connector), setup(Role::kAcceptor, acceptor)};
}

void expect_done(const Pair& pair) {
  ASSERT_FALSE(pair.connector_error) << pair.connector_error->message;
  ASSERT_FALSE(pair.acceptor_error) << pair.acceptor_error->message;
  ASSERT_TRUE(pair.connector.done());
  ASSERT_TRUE(pair.acceptor.done());
}

TEST(Handshake, IntroducesTwoSidesHoweverTheyProveThemselves) {
  for (const auto proof : {kNone, kKey, kCertificate}) {
    Pair pair = make_pair(proof, proof);
    pair.run();
    expect_done(pair);
    EXPECT_EQ(pair.connector.peer_hello().incarnation, 22U);
    EXPECT_EQ(pair.acceptor.peer_hello().incarnation, 11U);
    EXPECT_EQ(pair.connector.peer_introduction().note, "from the acceptor");
    EXPECT_EQ(pair.acceptor.peer_introduction().note, "from the connector");
    EXPECT_EQ(pair.acceptor.peer_introduction().transports.size(), 2U);
    EXPECT_EQ(pair.acceptor.peer_identity(), proof == kNone ? "" : "decode-1");
    EXPECT_EQ(pair.connector.hellos(), pair.acceptor.hellos());
  }
}

struct Wishes {
  Encryption connector;
  Encryption acceptor;
};

Pair wish(Wishes wishes, wire::Proof proof) {
  Handshake::Setup connecting = setup(Role::kConnector, proof);
  Handshake::Setup accepting = setup(Role::kAcceptor, proof);
  connecting.encryption = wishes.connector;
  accepting.encryption = wishes.acceptor;
  Pair pair(std::move(connecting), std::move(accepting));
  pair.run();
  return pair;
}

constexpr std::array kWishes{Encryption::kOff, Encryption::kOn, Encryption::kRequire};

TEST(Handshake, EncryptsDataIfEitherSideWishesIt) {
  for (const Encryption mine : kWishes) {
    for (const Encryption theirs : kWishes) {
      const bool off = mine == Encryption::kOff || theirs == Encryption::kOff;
      const bool required = mine == Encryption::kRequire || theirs == Encryption::kRequire;
      if (off && required) continue;
      for (const auto proof : {kKey, kCertificate}) {
        const Pair pair = wish({mine, theirs}, proof);
        expect_done(pair);
        const bool encrypts = mine != Encryption::kOff || theirs != Encryption::kOff;
        EXPECT_EQ(pair.connector.encrypts(), encrypts);
        EXPECT_EQ(pair.acceptor.encrypts(), encrypts);
      }
    }
  }
}

TEST(Handshake, RefusesAPeerThatHasOffWhatIsRequired) {
  for (const auto& [mine, theirs] :
       {std::pair(Encryption::kRequire, Encryption::kOff), {Encryption::kOff, Encryption::kRequire}}) {
    const Pair pair = wish({mine, theirs}, kKey);
    for (const auto& error : {pair.connector_error, pair.acceptor_error}) {
      ASSERT_TRUE(error);
      EXPECT_EQ(error->code, ErrorCode::kPermissionDenied);
      EXPECT_THAT(error->message, HasSubstr("encrypted data"));
      EXPECT_THAT(error->message, HasSubstr("UCCL_P2P_TLS"));
    }
  }
}

TEST(Handshake, NothingIsEncryptedWithoutProofs) {
  const Pair pair = wish({Encryption::kOn, Encryption::kOn}, kNone);
  expect_done(pair);
  EXPECT_FALSE(pair.connector.encrypts());
  EXPECT_FALSE(pair.acceptor.encrypts());
}

TEST(Handshake, RefusesWishesThatAreNotDue) {
  constexpr wire::EncryptionWish kOn{static_cast<std::uint8_t>(Encryption::kOn)};
  const auto introducing = [](wire::Proof proof) {
    Handshake acceptor(setup(Role::kAcceptor, proof));
    EXPECT_FALSE(acceptor.take(Handshake(setup(Role::kConnector, proof)).start().send.at(0)).error);
    if (proof != kNone) acceptor.sealed("decode-1");
    return acceptor;
  };
  EXPECT_TRUE(Handshake(setup(Role::kAcceptor, kKey)).take(kOn).error);
  EXPECT_TRUE(introducing(kNone).take(kOn).error);
  EXPECT_TRUE(introducing(kKey).take(wire::EncryptionWish{0}).error);
  EXPECT_TRUE(introducing(kKey).take(wire::EncryptionWish{3}).error);
  Handshake twice = introducing(kKey);
  EXPECT_FALSE(twice.take(kOn).error);
  EXPECT_TRUE(twice.take(kOn).error);
}

// So a connector that is through was not closed for want of room, as one may be until then.
TEST(Handshake, TheAcceptorIntroducesItselfLast) {
  for (const auto proof : {kNone, kKey}) {
    Handshake connector(setup(Role::kConnector, proof));
    Handshake acceptor(setup(Role::kAcceptor, proof));
    const Handshake::Step hello = acceptor.take(connector.start().send.at(0));
    ASSERT_EQ(hello.send.size(), 1U);
    Handshake::Step introduction = connector.take(hello.send.at(0));
    if (proof == kKey) {
      EXPECT_TRUE(acceptor.sealed("decode-1").send.empty());
      introduction = connector.sealed("decode-1");
    }
    ASSERT_EQ(introduction.send.size(), 1U);
    EXPECT_FALSE(connector.done());
    const Handshake::Step last = acceptor.take(introduction.send.at(0));
    EXPECT_TRUE(acceptor.done());
    ASSERT_EQ(last.send.size(), 1U);
    EXPECT_TRUE(connector.take(last.send.at(0)).send.empty());
    EXPECT_TRUE(connector.done());
  }
}

TEST(Handshake, GivesEachSessionItsOwnDigest) {
  Pair one = make_pair(kKey, kKey);
  Pair two = make_pair(kKey, kKey);
  one.run();
  two.run();
  expect_done(one);
  expect_done(two);
  EXPECT_NE(one.connector.hellos(), two.connector.hellos());
}

TEST(Handshake, NamesWhatEachSideHasIfTheyDiffer) {
  const auto message = [](wire::Proof proof) {
    return proof == kNone ? "no key" : proof == kKey ? "a key" : "a certificate";
  };
  for (const auto& [mine, theirs] :
       {std::pair(kKey, kNone), {kNone, kKey}, {kCertificate, kKey}, {kNone, kCertificate}}) {
    Pair pair = make_pair(mine, theirs);
    pair.run();
    for (const auto& [error, here, there] :
         {std::tuple(pair.connector_error, mine, theirs), std::tuple(pair.acceptor_error, theirs, mine)}) {
      ASSERT_TRUE(error);
      EXPECT_EQ(error->code, ErrorCode::kPermissionDenied);
      EXPECT_THAT(error->message, HasSubstr(std::string("this side has ") + message(here)));
      EXPECT_THAT(error->message, HasSubstr(std::string("the peer has ") + message(there)));
    }
    EXPECT_FALSE(pair.connector.done());
    EXPECT_FALSE(pair.acceptor.done());
  }
}

TEST(Handshake, SpeaksTheHighestCommonVersion) {
  struct Case {
    wire::Versions mine, theirs;
    std::uint16_t spoken;
  };
  for (const auto& [mine, theirs, spoken] :
       {Case{{1, 1}, {1, 2}, 1}, {{1, 3}, {2, 5}, 3}, {{2, 5}, {1, 3}, 3}, {{1, 5}, {2, 3}, 3}}) {
    for (const wire::Proof proof : {kNone, kKey}) {
      Handshake::Setup connecting = setup(Role::kConnector, proof);
      Handshake::Setup accepting = setup(Role::kAcceptor, proof);
      connecting.versions = mine;
      accepting.versions = theirs;
      Pair pair(std::move(connecting), std::move(accepting));
      pair.run();
      ASSERT_TRUE(pair.connector.done() && pair.acceptor.done());
      EXPECT_EQ(pair.connector.version(), spoken);
      EXPECT_EQ(pair.acceptor.version(), spoken);
    }
  }
}

TEST(Handshake, NamesBothRangesIfNoVersionIsCommon) {
  for (const auto& [mine, theirs] : {std::pair(wire::Versions{1, 3}, wire::Versions{4, 5}),
                                     {wire::Versions{4, 5}, wire::Versions{1, 3}}}) {
    Handshake::Setup connecting = setup(Role::kConnector, kKey);
    Handshake::Setup accepting = setup(Role::kAcceptor, kKey);
    connecting.versions = mine;
    accepting.versions = theirs;
    Pair pair(std::move(connecting), std::move(accepting));
    pair.run();
    for (const auto& [error, here, there] :
         {std::tuple(pair.connector_error, mine, theirs), {pair.acceptor_error, theirs, mine}}) {
      ASSERT_TRUE(error);
      EXPECT_EQ(error->code, ErrorCode::kUnavailable);
      EXPECT_THAT(error->message,
                  HasSubstr(fmt::format("this side speaks {} to {}, the peer {} to {}", here.oldest,
                                        here.newest, there.oldest, there.newest)));
    }
  }
}

// Whoever takes the newest version out of a hello changes what the introductions repeat.
TEST(Handshake, NoticesARangeThatWasChanged) {
  Handshake::Setup connecting = setup(Role::kConnector, kKey);
  Handshake::Setup accepting = setup(Role::kAcceptor, kKey);
  connecting.versions = accepting.versions = {1, 2};
  Pair pair(std::move(connecting), std::move(accepting));
  std::get<wire::Hello>(pair.to_acceptor.front()).newest = 1;
  pair.run();
  EXPECT_EQ(pair.acceptor.version(), 1);
  ASSERT_TRUE(pair.acceptor_error);
  EXPECT_THAT(pair.acceptor_error->message, HasSubstr("somebody changes it"));
  EXPECT_FALSE(pair.acceptor.done());
  EXPECT_FALSE(pair.connector.done());
}

TEST(Handshake, TellsAStrangerNothingButAHello) {
  Handshake acceptor(setup(Role::kAcceptor, kKey));
  EXPECT_TRUE(acceptor.start().send.empty());
  const Handshake::Step step = acceptor.take(wire::Hello{.incarnation = 5, .proof = 1});
  ASSERT_FALSE(step.error);
  EXPECT_TRUE(step.seal);
  ASSERT_EQ(step.send.size(), 1U);
  EXPECT_TRUE(std::holds_alternative<wire::Hello>(step.send[0]));
}

TEST(Handshake, RefusesItsOwnHelloReflected) {
  Handshake connector(setup(Role::kConnector, kKey));
  const Handshake::Step start = connector.start();
  EXPECT_TRUE(connector.take(start.send.at(0)).error);
}

TEST(Handshake, RefusesAHelloThatProvesNothingKnown) {
  Handshake acceptor(setup(Role::kAcceptor, kKey));
  const Handshake::Step step = acceptor.take(wire::Hello{.incarnation = 5, .proof = 3});
  ASSERT_TRUE(step.error);
  EXPECT_EQ(step.error->code, ErrorCode::kProtocol);
  EXPECT_TRUE(step.send.empty());
}

// Whatever somebody in between changes of a hello: the incarnation here.
TEST(Handshake, NoticesAHelloThatWasChanged) {
  Pair pair = make_pair(kKey, kKey);
  std::get<wire::Hello>(pair.to_acceptor.front()).incarnation = 99;
  pair.run();
  ASSERT_TRUE(pair.acceptor_error);
  EXPECT_EQ(pair.acceptor_error->code, ErrorCode::kPermissionDenied);
  EXPECT_THAT(pair.acceptor_error->message, HasSubstr("somebody changes it"));
  ASSERT_TRUE(pair.connector_error);
  EXPECT_EQ(pair.connector_error->code, ErrorCode::kPermissionDenied);
}

TEST(Handshake, RefusesWhoIsNotAllowed) {
  for (const auto& [proof, role, refused] :
       {std::tuple(kKey, Role::kAcceptor, true), std::tuple(kKey, Role::kConnector, false),
        std::tuple(kCertificate, Role::kAcceptor, true), std::tuple(kCertificate, Role::kConnector, true)}) {
    Handshake::Setup connecting = setup(Role::kConnector, proof);
    Handshake::Setup accepting = setup(Role::kAcceptor, proof);
    (role == Role::kConnector ? connecting : accepting).allow = {"decode-2", "decode-3"};
    Pair pair(connecting, accepting);
    pair.run();
    EXPECT_EQ(pair.connector_error.has_value(), refused);
    EXPECT_EQ(pair.acceptor_error.has_value(), refused);
    if (!refused) continue;
    for (const auto& error : {pair.connector_error, pair.acceptor_error}) {
      EXPECT_EQ(error->code, ErrorCode::kPermissionDenied);
      EXPECT_THAT(error->message, HasSubstr("'decode-1' is not among those that may connect here"));
    }
  }
  Handshake::Setup accepting = setup(Role::kAcceptor, kKey);
  accepting.allow = {"decode-2", "decode-1"};
  Pair pair(setup(Role::kConnector, kKey), accepting);
  pair.run();
  expect_done(pair);
}

TEST(Handshake, RefusesMessagesOutOfTurn) {
  for (const wire::Message& message : {wire::Message(wire::Introduction{}), wire::Message(wire::Heartbeat{}),
                                       wire::Message(wire::RegionQuery{})}) {
    Handshake acceptor(setup(Role::kAcceptor, kKey));
    const Handshake::Step step = acceptor.take(message);
    ASSERT_TRUE(step.error) << wire::name(message);
    EXPECT_EQ(step.error->code, ErrorCode::kProtocol);
    EXPECT_TRUE(step.send.empty());
    Handshake late(setup(Role::kAcceptor, kKey));
    EXPECT_FALSE(late.take(wire::Hello{.proof = 1}).error);
    const Handshake::Step next = late.take(message);
    ASSERT_TRUE(next.error) << wire::name(message);
    EXPECT_EQ(next.error->code, ErrorCode::kProtocol);
  }
}

TEST(Handshake, TakesLongFramesOnlyFromWhoHasProvenItself) {
  Handshake acceptor(setup(Role::kAcceptor, kKey));
  EXPECT_EQ(acceptor.max_frame_bytes(), wire::kStrangerFrameBytes);
  EXPECT_FALSE(acceptor.take(wire::Hello{.proof = 1}).error);
  EXPECT_EQ(acceptor.max_frame_bytes(), wire::kStrangerFrameBytes);
  Pair pair = make_pair(kKey, kKey);
  pair.run();
  EXPECT_EQ(pair.acceptor.max_frame_bytes(), wire::kMaxFrameBytes);
}

TEST(Handshake, ShowsAPeersReasonWithoutItsControlCharacters) {
  Handshake connector(setup(Role::kConnector, kNone));
  connector.start();
  const Handshake::Step step = connector.take(wire::Bye{"no\n\x1b[31m" + std::string(1000, 'x')});
  ASSERT_TRUE(step.error);
  EXPECT_THAT(step.error->message, HasSubstr("the peer refused: no??[31mxx"));
  EXPECT_LT(step.error->message.size(), 1100U);
}

TEST(Handshake, RefusesANoteThatIsTooLong) {
  Handshake::Setup talkative = setup(Role::kConnector, kNone);
  talkative.introduction.note.resize(Handshake::kMaxNoteBytes + 1);
  Pair pair(std::move(talkative), setup(Role::kAcceptor, kNone));
  pair.run();
  ASSERT_TRUE(pair.acceptor_error);
  EXPECT_EQ(pair.acceptor_error->code, ErrorCode::kProtocol);
}

}  // namespace
}  // namespace p2p::engine
