// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <poll.h>

#include <array>
#include <atomic>
#include <functional>
#include <future>
#include <optional>
#include <random>
#include <tuple>
#include <vector>

#include "support/certificates.h"
#include "support/session_ends.h"

namespace p2p::engine {
namespace {

using ::testing::HasSubstr;

TEST_F(SessionTest, TellsWhoThePeerIs) {
  SessionConfig named = config("");
  named.credentials = key("a secret", "decode-1");
  Side connector;
  Side acceptor;
  connect(connector, named, acceptor, named);
  ASSERT_TRUE(connector.wait_open()) << connector.wait_closed().message;
  ASSERT_TRUE(acceptor.wait_open()) << acceptor.wait_closed().message;
  EXPECT_EQ(acceptor.peer().identity, "decode-1");
  EXPECT_EQ(connector.peer().identity, "decode-1");
  end({&connector, &acceptor});
}

TEST_F(SessionTest, CertificatesNameBothSides) {
  const crypto::Authority authority("A");
  SessionConfig connecting = config("");
  SessionConfig accepting = config("");
  connecting.credentials = crypto::Credentials::of_certificates(authority.issue("decode-1")).value();
  accepting.credentials = crypto::Credentials::of_certificates(authority.issue("prefill-1")).value();
  accepting.allow = {"decode-1"};
  Side connector;
  Side acceptor;
  connect(connector, connecting, acceptor, accepting);
  ASSERT_TRUE(connector.wait_open()) << connector.wait_closed().message;
  ASSERT_TRUE(acceptor.wait_open()) << acceptor.wait_closed().message;
  EXPECT_EQ(acceptor.peer().identity, "decode-1");
  EXPECT_EQ(connector.peer().identity, "prefill-1");
  EXPECT_EQ(connector.peer().secret, acceptor.peer().secret);
  end({&connector, &acceptor});
}

TEST_F(SessionTest, RefusesWhoIsNotAllowed) {
  SessionConfig named = config("");
  named.credentials = key("a secret", "decode-1");
  SessionConfig strict = named;
  strict.allow = {"decode-2", "decode-3"};
  Side connector;
  Side acceptor;
  connect(connector, named, acceptor, strict);
  const Error here = connector.wait_closed();
  const Error there = acceptor.wait_closed();
  EXPECT_EQ(here.code, ErrorCode::kPermissionDenied);
  EXPECT_EQ(there.code, ErrorCode::kPermissionDenied);
  EXPECT_THAT(here.message, HasSubstr("the peer refused: 'decode-1' is not among those that may connect"));
  EXPECT_THAT(there.message, HasSubstr("'decode-1' is not among those that may connect"));
  EXPECT_FALSE(connector.ever_opened());
  EXPECT_FALSE(acceptor.ever_opened());
  // Whom this side dials need not be allowed: the key that it shows is its own.
  Side third;
  Side fourth;
  connect(third, strict, fourth, named);
  EXPECT_TRUE(third.wait_open()) << third.wait_closed().message;
  end({&third, &fourth});
}

TEST_F(SessionTest, RefusesUnknownNamesAndCertificatesOnBothSides) {
  const crypto::Authority authority("A");
  const crypto::Authority other("B");
  const auto by = [](const crypto::CertificateFiles& files) {
    return crypto::Credentials::of_certificates(files).value();
  };
  auto foreign = other.issue("decode-2");
  foreign.authority = authority.path();
  const auto good = by(authority.issue("decode-1"));
  const auto ended = by(authority.issue("decode-3", crypto::Authority::Hours(-1)));
  for (const auto& [mine, theirs, message] :
       {std::tuple(key("right", "a"), key("right", "b"), "key named 'a'"),
        {good, by(foreign), "certificate"},
        {by(foreign), good, "certificate"},
        {good, ended, "expired"},
        {ended, good, "expired"},
        {good, key("right"), "certificate"}}) {
    SessionConfig connecting = config("");
    SessionConfig accepting = config("");
    connecting.credentials = mine;
    accepting.credentials = theirs;
    Side connector;
    Side acceptor;
    connect(connector, connecting, acceptor, accepting);
    const Error here = connector.wait_closed();
    const Error there = acceptor.wait_closed();
    EXPECT_EQ(here.code, ErrorCode::kPermissionDenied) << here.message;
    EXPECT_EQ(there.code, ErrorCode::kPermissionDenied) << there.message;
    EXPECT_THAT(here.message, HasSubstr(message));
    EXPECT_THAT(there.message, HasSubstr(message));
    EXPECT_FALSE(connector.ever_opened());
    EXPECT_FALSE(acceptor.ever_opened());
  }
}

/// Stands between two honest sides, on blocking sockets: takes down what it hands on, and may change it.
class Relay {
 public:
  Relay(UniqueFd connector, UniqueFd acceptor)
      : connector_(std::move(connector)), acceptor_(std::move(acceptor)) {}

  std::function<void(Bytes&, std::size_t)> change;  ///< of the connector: bytes, and how many came before

  /// Hands on until one side closes.
  void run() {
    while (hand_on()) {
    }
    ::shutdown(connector_.get(), SHUT_RDWR);
    ::shutdown(acceptor_.get(), SHUT_RDWR);
  }
  const std::vector<Bytes>& overheard() const { return overheard_; }

 private:
  bool hand_on() {
    std::array<pollfd, 2> ends{pollfd{connector_.get(), POLLIN, 0}, pollfd{acceptor_.get(), POLLIN, 0}};
    if (::poll(ends.data(), ends.size(), 30'000) <= 0) return false;
    if (ends[0].revents != 0) return copy(connector_.get(), acceptor_.get(), true);
    return copy(acceptor_.get(), connector_.get(), false);
  }
  bool copy(int from, int to, bool forth) {
    Bytes bytes(65536);
    const ssize_t got = ::recv(from, bytes.data(), bytes.size(), 0);
    if (got <= 0) return false;
    bytes.resize(static_cast<std::size_t>(got));
    if (forth) {
      overheard_.push_back(bytes);
      if (change) change(bytes, forth_);
      forth_ += bytes.size();
    }
    return ::send(to, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
  }

  const UniqueFd connector_;
  const UniqueFd acceptor_;
  std::size_t forth_ = 0;
  std::vector<Bytes> overheard_;
};

class RelayedSessions : public SessionTest {
 protected:
  /// Both sides with a key, and a relay between them.
  void connect_through(Side& connector, Side& acceptor) {
    dial(connector, listener_.port(), config("k"));
    UniqueFd front = listener_.accept();
    auto [near, far] = socket_pair();
    accept(acceptor, std::move(far), config("k"));
    relay_.emplace(std::move(front), std::move(near));
  }

  std::optional<Relay> relay_;
};

TEST_F(RelayedSessions, RefuseTheBytesOfAnEarlierHandshake) {
  Side connector;
  Side acceptor;
  connect_through(connector, acceptor);
  auto relaying = std::async(std::launch::async, [&] { relay_->run(); });
  ASSERT_TRUE(connector.wait_open()) << connector.wait_closed().message;
  ASSERT_TRUE(acceptor.wait_open()) << acceptor.wait_closed().message;
  connector.session->close({ErrorCode::kCancelled, "enough"});
  connector.wait_closed();
  relaying.get();

  auto [ours, theirs] = socket_pair();
  Side victim;
  accept(victim, std::move(ours), config("k"));
  Stranger replayer(std::move(theirs));
  replayer.send(relay_->overheard().front());
  ASSERT_TRUE(replayer.next());  // a hello, as anybody gets
  for (std::size_t i = 1; i != relay_->overheard().size(); ++i) replayer.send(relay_->overheard()[i]);
  EXPECT_TRUE(replayer.dropped());
  EXPECT_EQ(victim.wait_closed().code, ErrorCode::kProtocol);
  EXPECT_FALSE(victim.ever_opened());
  end({&connector, &acceptor, &victim});
}

TEST_F(RelayedSessions, NoticeAHelloThatWasChanged) {
  Side connector;
  Side acceptor;
  connect_through(connector, acceptor);
  constexpr std::size_t kIncarnation = 4 + 2 + 2 + 2;  // length, type and versions lie before it
  relay_->change = [](Bytes& bytes, std::size_t before) {
    if (before == 0) bytes.at(kIncarnation) ^= std::byte{1};
  };
  auto relaying = std::async(std::launch::async, [&] { relay_->run(); });
  const Error here = connector.wait_closed();
  const Error there = acceptor.wait_closed();
  relaying.get();
  EXPECT_EQ(here.code, ErrorCode::kPermissionDenied) << here.message;
  EXPECT_EQ(there.code, ErrorCode::kPermissionDenied) << there.message;
  EXPECT_THAT(there.message, HasSubstr("somebody changes it"));
  EXPECT_FALSE(connector.ever_opened());
  EXPECT_FALSE(acceptor.ever_opened());
}

TEST_F(RelayedSessions, EndAtARecordThatWasChanged) {
  Side connector;
  Side acceptor;
  connect_through(connector, acceptor);
  std::atomic<bool> tamper{false};
  relay_->change = [&](Bytes& bytes, std::size_t) {
    if (tamper) bytes.back() ^= std::byte{1};
  };
  auto relaying = std::async(std::launch::async, [&] { relay_->run(); });
  ASSERT_TRUE(connector.wait_open()) << connector.wait_closed().message;
  ASSERT_TRUE(acceptor.wait_open()) << acceptor.wait_closed().message;
  connector.session->send(wire::RegionRevoked{1});
  ASSERT_TRUE(acceptor.wait_messages(1));
  tamper = true;
  connector.session->send(wire::RegionRevoked{2});
  const Error there = acceptor.wait_closed();
  const Error here = connector.wait_closed();
  relaying.get();
  EXPECT_EQ(there.code, ErrorCode::kProtocol);
  EXPECT_THAT(there.message, HasSubstr("bad record mac"));
  EXPECT_EQ(acceptor.messages().size(), 1U);
  EXPECT_EQ(here.code, ErrorCode::kProtocol);
  EXPECT_THAT(here.message, HasSubstr("the peer gave up: bad record mac"));
  end({&connector, &acceptor});
}

TEST_F(SessionTest, RefusesGarbageInPlaceOfTls) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 40; ++round) {
    auto [ours, theirs] = socket_pair();
    Side side;
    accept(side, std::move(ours), config("k"));
    Stranger stranger(std::move(theirs));
    stranger.send(wire::Hello{.incarnation = 4, .proof = 1});
    ASSERT_TRUE(stranger.next());
    Bytes bytes(9 + random() % 5000);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    stranger.send(bytes);
    EXPECT_TRUE(stranger.dropped());
    EXPECT_EQ(side.wait_closed().code, ErrorCode::kProtocol);
    EXPECT_FALSE(side.ever_opened());
  }
}

// In the clear where TLS is to follow, also in the same breath.
TEST_F(SessionTest, RefusesToGoOnWithoutTls) {
  for (const bool at_once : {true, false}) {
    auto [ours, theirs] = socket_pair();
    Side side;
    accept(side, std::move(ours), config("k"));
    Stranger stranger(std::move(theirs));
    Bytes said = wire::encode(wire::Hello{.incarnation = 4, .proof = 1});
    if (at_once) ByteWriter(said).put(ByteView(wire::encode(wire::Introduction{})));
    stranger.send(said);
    if (!at_once) {
      ASSERT_TRUE(stranger.next());
      stranger.send(wire::Introduction{});
    }
    EXPECT_TRUE(stranger.dropped());
    EXPECT_EQ(side.wait_closed().code, ErrorCode::kProtocol);
    EXPECT_FALSE(side.ever_opened());
  }
}

}  // namespace
}  // namespace p2p::engine
