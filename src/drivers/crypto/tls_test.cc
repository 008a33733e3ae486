// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/crypto/tls.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "support/certificates.h"

namespace p2p::crypto {
namespace {

using ::testing::HasSubstr;
using Files = CertificateFiles;

NamedKey key(std::string name, std::string_view secret) {
  const ByteView bytes = as_bytes(secret);
  return {std::move(name), Bytes(bytes.begin(), bytes.end())};
}

using Shared = std::shared_ptr<const Credentials>;

Shared keys(std::vector<NamedKey> some) { return Credentials::of_keys(std::move(some)).value(); }
Shared certificate(const Files& files) {
  auto made = Credentials::of_certificates(files);
  EXPECT_TRUE(made) << made.error().message;
  return made ? *made : nullptr;
}

/// Two sides and what lies between them.
struct Pair {
  Pair(Shared dials, Shared accepts)
      : client(Tls::start(std::move(dials), Tls::Side::kDials).value()),
        server(Tls::start(std::move(accepts), Tls::Side::kAccepts).value()) {}

  static void deliver(Tls& from, Tls& to, Bytes& clear, std::optional<Error>& error) {
    const Bytes bytes = std::exchange(from.outgoing(), {});
    if (bytes.empty() || error) return;
    if (Status taken = to.take(bytes, clear); !taken) error = taken.error();
  }
  void run() {
    while (!client->outgoing().empty() || !server->outgoing().empty()) {
      deliver(*client, *server, at_server, server_error);
      deliver(*server, *client, at_client, client_error);
    }
  }
  void expect_established() {
    run();
    ASSERT_FALSE(client_error) << client_error->message;
    ASSERT_FALSE(server_error) << server_error->message;
    ASSERT_TRUE(client->established());
    ASSERT_TRUE(server->established());
  }
  void expect_denied(const std::string& at_client_text, const std::string& at_server_text) {
    run();
    ASSERT_TRUE(client_error);
    ASSERT_TRUE(server_error);
    EXPECT_EQ(client_error->code, ErrorCode::kPermissionDenied) << client_error->message;
    EXPECT_EQ(server_error->code, ErrorCode::kPermissionDenied) << server_error->message;
    EXPECT_THAT(client_error->message, HasSubstr(at_client_text));
    EXPECT_THAT(server_error->message, HasSubstr(at_server_text));
  }

  std::unique_ptr<Tls> client;
  std::unique_ptr<Tls> server;
  Bytes at_client;
  Bytes at_server;
  std::optional<Error> client_error;
  std::optional<Error> server_error;
};

TEST(Tls, CarriesBytesBothWays) {
  const Shared one = keys({key("a", "some secret")});
  Pair pair(one, one);
  pair.expect_established();
  EXPECT_EQ(pair.client->peer(), "a");
  EXPECT_EQ(pair.server->peer(), "a");
  std::mt19937_64 random(1);
  Bytes said(100'000);
  for (std::byte& byte : said) byte = static_cast<std::byte>(random());
  ASSERT_TRUE(pair.client->seal(said));
  const Bytes sealed = pair.client->outgoing();
  EXPECT_EQ(std::search(sealed.begin(), sealed.end(), said.begin(), said.begin() + 8), sealed.end());
  ASSERT_TRUE(pair.server->seal(as_bytes("short")));
  pair.run();
  EXPECT_EQ(pair.at_server, said);
  EXPECT_EQ(to_string(pair.at_client), "short");
}

TEST(Tls, TakesBytesCutAnywhere) {
  const Shared one = keys({key("", "some secret")});
  Pair pair(one, one);
  const auto drip = [](Tls& from, Tls& to, Bytes& clear) {
    for (const std::byte byte : std::exchange(from.outgoing(), {})) {
      ASSERT_TRUE(to.take(ByteView(&byte, 1), clear));
    }
  };
  while (!pair.client->outgoing().empty() || !pair.server->outgoing().empty()) {
    drip(*pair.client, *pair.server, pair.at_server);
    drip(*pair.server, *pair.client, pair.at_client);
  }
  pair.expect_established();
  ASSERT_TRUE(pair.client->seal(as_bytes("drop by drop")));
  drip(*pair.client, *pair.server, pair.at_server);
  EXPECT_EQ(to_string(pair.at_server), "drop by drop");
}

TEST(Tls, TheSecretIsOfThisConnectionAndContext) {
  const Shared one = keys({key("", "some secret")});
  Pair pair(one, one);
  Pair other(one, one);
  pair.expect_established();
  other.expect_established();
  const auto secret = [](Tls& tls, std::string_view context) {
    return tls.secret("a label", as_bytes(context)).value();
  };
  EXPECT_EQ(secret(*pair.client, "x"), secret(*pair.server, "x"));
  EXPECT_NE(secret(*pair.client, "x"), secret(*pair.server, "y"));
  EXPECT_NE(secret(*pair.client, "x"), secret(*other.client, "x"));
}

TEST(Tls, WhoAcceptsTakesAnyKeyOfTheNameShown) {
  const NamedKey old_key = key("old", "the old secret");
  const NamedKey new_key = key("new", "the new secret");
  for (const auto& [dials, accepts, name] :
       {std::tuple(keys({old_key}), keys({old_key, new_key}), "old"),
        std::tuple(keys({new_key, old_key}), keys({old_key, new_key}), "new"),
        std::tuple(keys({key("", "the old secret")}), keys({new_key, key("", "the old secret")}), "")}) {
    Pair pair(dials, accepts);
    pair.expect_established();
    EXPECT_EQ(pair.server->peer(), name);
    EXPECT_EQ(pair.client->peer(), name);
  }
}

TEST(Tls, SaysOnBothSidesWhichKeyDoesNotFit) {
  Pair(keys({key("a", "one")}), keys({key("a", "two")}))
      .expect_denied("different keys: its key named 'a'", "different keys: the peer's key named 'a'");
  Pair(keys({key("", "one")}), keys({key("", "two")}))
      .expect_denied("different keys: its key without a name",
                     "different keys: the peer's key without a name");
  Pair(keys({key("a", "one")}), keys({key("b", "one")}))
      .expect_denied("it has no key named 'a'", "the peer shows a key named 'a': this side has none such");
  Pair(keys({key("", "one")}), keys({key("b", "one")}))
      .expect_denied("it has no key without a name",
                     "the peer shows a key without a name: this side has none such");
}

TEST(Tls, ACertificateIsNoKey) {
  const Authority authority("A");
  Pair pair(certificate(authority.issue("decode-1")), keys({key("a", "one")}));
  pair.run();
  ASSERT_TRUE(pair.server_error);
  EXPECT_EQ(pair.server_error->message, "the peer shows no key");
  Pair other(keys({key("a", "one")}), certificate(authority.issue("decode-1")));
  other.run();
  EXPECT_TRUE(other.client_error);
  EXPECT_FALSE(other.client->established());
  EXPECT_FALSE(other.server->established());
}

TEST(Tls, CertificatesOfOneAuthorityNameBothSides) {
  const Authority authority("A");
  Pair pair(certificate(authority.issue("decode-1")), certificate(authority.issue("prefill-7")));
  pair.expect_established();
  EXPECT_EQ(pair.client->peer(), "prefill-7");
  EXPECT_EQ(pair.server->peer(), "decode-1");
  ASSERT_TRUE(pair.client->seal(as_bytes("sealed")));
  pair.run();
  EXPECT_EQ(to_string(pair.at_server), "sealed");
}

TEST(Tls, RefusesCertificatesThatEndedOrThatAnotherHasSigned) {
  const Authority authority("A");
  const Authority other("B");
  const Files good = authority.issue("decode-1");
  Files foreign = other.issue("decode-2");
  foreign.authority = authority.path();
  const Files ended = authority.issue("decode-3", Authority::Hours(-1));
  Pair(certificate(ended), certificate(good))
      .expect_denied("refused this side's certificate: certificate expired",
                     "refused: certificate has expired");
  Pair(certificate(good), certificate(ended))
      .expect_denied("refused: certificate has expired",
                     "refused this side's certificate: certificate expired");
  Pair(certificate(foreign), certificate(good))
      .expect_denied("refused this side's certificate", "refused: unable to");
  Pair(certificate(good), certificate(foreign))
      .expect_denied("refused: unable to", "refused this side's certificate");
}

TEST(Tls, RefusesACertificateWithoutAName) {
  const Authority authority("A");
  Pair pair(certificate(authority.issue("")), certificate(authority.issue("x")));
  pair.run();
  ASSERT_TRUE(pair.server_error);
  EXPECT_THAT(pair.server_error->message, HasSubstr("no common name"));
}

TEST(Tls, SaysWhichFileIsNoCertificate) {
  const Authority authority("A");
  Files files = authority.issue("x");
  std::swap(files.certificate, files.key);
  const auto made = Credentials::of_certificates(files);
  ASSERT_FALSE(made);
  EXPECT_THAT(made.error().message, HasSubstr(files.certificate));
  Files mixed = authority.issue("x");
  mixed.key = authority.issue("y").key;
  EXPECT_THAT(Credentials::of_certificates(mixed).error().message, HasSubstr(mixed.key));
}

TEST(Tls, ChangedBytesAreNeverTaken) {
  const Shared one = keys({key("a", "some secret")});
  for (std::size_t at = 0;; ++at) {
    Pair pair(one, one);
    pair.expect_established();
    ASSERT_TRUE(pair.client->seal(as_bytes("said by the peer")));
    Bytes& sealed = pair.client->outgoing();
    if (at == sealed.size()) break;
    sealed[at] ^= std::byte{1};
    pair.run();
    // A longer record than was sent is awaited for ever, and what follows does not fit it.
    for (int i = 0; i != 2 && !pair.server_error; ++i) {
      ASSERT_TRUE(pair.client->seal(Bytes(60'000)));
      pair.run();
    }
    ASSERT_TRUE(pair.server_error) << at;
    EXPECT_EQ(pair.server_error->code, ErrorCode::kProtocol);
    EXPECT_TRUE(pair.at_server.empty());
    EXPECT_TRUE(pair.client_error) << "an alert tells the peer";
  }
}

TEST(Tls, ARecordThatComesTwiceOrNotAtAllIsNoticed) {
  const Shared one = keys({key("a", "some secret")});
  for (const bool twice : {true, false}) {
    Pair pair(one, one);
    pair.expect_established();
    ASSERT_TRUE(pair.client->seal(as_bytes("one")));
    Bytes first = std::exchange(pair.client->outgoing(), {});
    ASSERT_TRUE(pair.client->seal(as_bytes("two")));
    if (twice) {
      ASSERT_TRUE(pair.server->take(first, pair.at_server));
      EXPECT_FALSE(pair.server->take(first, pair.at_server));
    } else {
      EXPECT_FALSE(pair.server->take(pair.client->outgoing(), pair.at_server));
    }
  }
}

TEST(Tls, AnEarlierConversationOpensNothing) {
  const Shared one = keys({key("a", "some secret")});
  Pair pair(one, one);
  std::vector<Bytes> overheard;
  while (!pair.client->outgoing().empty() || !pair.server->outgoing().empty()) {
    overheard.push_back(pair.client->outgoing());
    Pair::deliver(*pair.client, *pair.server, pair.at_server, pair.server_error);
    Pair::deliver(*pair.server, *pair.client, pair.at_client, pair.client_error);
  }
  pair.expect_established();
  const auto victim = Tls::start(one, Tls::Side::kAccepts).value();
  bool refused = false;
  for (const Bytes& bytes : overheard) {
    Bytes clear;
    if (!refused && !bytes.empty()) refused = !victim->take(bytes, clear);
  }
  EXPECT_TRUE(refused);
  EXPECT_FALSE(victim->established());
}

TEST(Tls, AStrangerCostsLittle) {
  const Shared one = keys({key("a", "some secret")});
  std::mt19937_64 random(2);
  for (int round = 0; round != 200; ++round) {
    const auto victim = Tls::start(one, Tls::Side::kAccepts).value();
    Bytes noise(1 + random() % 4000);
    for (std::byte& byte : noise) byte = static_cast<std::byte>(random());
    if (round % 2 == 0 && noise.size() > 9) {
      // Looks like the first words, for a while.
      const unsigned char head[] = {22, 3, 1, 0x02, 0, 1, 0, 0x01, 0xfc};
      std::memcpy(noise.data(), head, sizeof head);
    }
    Bytes clear;
    Status status;
    std::size_t fed = 0;
    while (status && fed <= Tls::kMostByKey + noise.size()) {
      status = victim->take(noise, clear);
      fed += noise.size();
    }
    EXPECT_FALSE(status);
    EXPECT_FALSE(victim->established());
    EXPECT_LT(victim->outgoing().size(), 100U);
  }
  // A first message as long as it likes.
  const auto victim = Tls::start(one, Tls::Side::kAccepts).value();
  const unsigned char head[] = {22, 3, 1, 0x40, 0, 1, 1, 0, 0};
  Bytes clear;
  EXPECT_FALSE(victim->take(std::as_bytes(std::span(head)), clear));
}

TEST(Tls, AnswersWhoHasShownAKeyThatItHas) {
  const Shared one = keys({key("a", "some secret")});
  Pair right(one, one);
  Bytes clear;
  const Bytes first_words = right.client->outgoing();
  for (const std::byte byte : first_words) {
    EXPECT_FALSE(right.server->answered()) << "before all has come";
    ASSERT_TRUE(right.server->take(ByteView(&byte, 1), clear));
  }
  EXPECT_TRUE(right.server->answered());
  EXPECT_FALSE(right.server->established());
  Pair wrong(keys({key("a", "another secret")}), one);
  EXPECT_FALSE(wrong.server->take(wrong.client->outgoing(), clear));
  EXPECT_FALSE(wrong.server->answered());
}

TEST(Tls, TakesNewKeysAfterManyRecords) {
  constexpr std::size_t kRecords = 5000;
  const Shared one = keys({key("a", "some secret")});
  Pair pair(one, one);
  pair.client = Tls::start(one, Tls::Side::kDials, 50).value();
  pair.expect_established();
  std::size_t updates = 0;
  for (std::size_t i = 0; i != kRecords; ++i) {
    ASSERT_TRUE(pair.client->seal(as_bytes("x")));
    updates += pair.client->outgoing().size() > 30;  // two records
    pair.run();
    ASSERT_FALSE(pair.server_error) << i << ": " << pair.server_error->message;
  }
  EXPECT_EQ(pair.at_server, Bytes(kRecords, std::byte{'x'}));
  EXPECT_EQ(updates, kRecords / 50 - 1);
}

TEST(Tls, AFloodOfNewKeysEndsIt) {
  const Shared one = keys({key("a", "some secret")});
  Pair pair(one, one);
  pair.client = Tls::start(one, Tls::Side::kDials, 0).value();  // one for each record
  pair.expect_established();
  for (int i = 0; i != 1000 && !pair.server_error; ++i) {
    ASSERT_TRUE(pair.client->seal(as_bytes("x")));
    pair.run();
  }
  ASSERT_TRUE(pair.server_error);
  EXPECT_EQ(pair.server_error->code, ErrorCode::kProtocol);
  EXPECT_THAT(pair.server_error->message, HasSubstr("new keys"));
}

}  // namespace
}  // namespace p2p::crypto
