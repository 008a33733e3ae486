// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/crypto/stream_tls.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <deque>
#include <random>
#include <vector>

#include "base/error.h"
#include "support/memory.h"

namespace p2p::crypto {
namespace {

using ::testing::HasSubstr;

/// What lies on its way from one side to the other; takes no more than it has room for.
struct Wire {
  std::deque<std::byte> bytes;
  std::size_t room = SIZE_MAX;
  bool ended = false;
};

struct End final : StreamTls::Pipe {
  Wire& out;
  Wire& in;
  std::size_t sends = 0;     ///< that took something
  std::size_t receives = 0;  ///< that brought something
  std::size_t at_once = SIZE_MAX;

  End(Wire& forth, Wire& back) : out(forth), in(back) {}

  Result<std::size_t> send(ByteView bytes) override {
    const std::size_t taken = std::min(bytes.size(), out.room - std::min(out.room, out.bytes.size()));
    out.bytes.insert(out.bytes.end(), bytes.begin(), bytes.begin() + static_cast<long>(taken));
    sends += taken != 0 ? 1 : 0;
    return taken;
  }
  Result<std::size_t> receive(std::span<std::byte> into) override {
    if (in.bytes.empty() && in.ended) return fail(ErrorCode::kPeerGone, "the pipe has ended");
    const std::size_t got = std::min({into.size(), in.bytes.size(), at_once});
    std::copy_n(in.bytes.begin(), got, into.begin());
    in.bytes.erase(in.bytes.begin(), in.bytes.begin() + static_cast<long>(got));
    receives += got != 0 ? 1 : 0;
    return got;
  }
};

StreamTls::Key key(int seed) {
  StreamTls::Key made;
  made.fill(static_cast<std::byte>(seed));
  return made;
}

Bytes noise(std::size_t size, unsigned seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

class StreamTlsTest : public ::testing::Test {
 protected:
  void start(int client_key, int server_key, std::uint64_t records = 1000) {
    client_ = StreamTls::start(Tls::Side::kDials, key(client_key), left_, records).value();
    server_ = StreamTls::start(Tls::Side::kAccepts, key(server_key), right_, records).value();
  }
  void shake_hands() {
    bool both = false;
    for (int i = 0; i != 10 && !both; ++i) {
      const auto here = client_->shake_hands();
      const auto there = server_->shake_hands();
      ASSERT_TRUE(here) << here.error().message;
      ASSERT_TRUE(there) << there.error().message;
      both = *here && *there;
    }
    ASSERT_TRUE(both);
  }

  /// Sends it cut into pieces and takes it in other pieces, until all is there or an error.
  Status carry(const Bytes& bytes, std::size_t piece, Bytes& got) {
    std::vector<iovec> pieces;
    for (std::size_t at = 0; at < bytes.size(); at += piece) {
      auto* from = const_cast<std::byte*>(bytes.data() + at);
      pieces.push_back({from, std::min(piece, bytes.size() - at)});
    }
    std::span<iovec> left(pieces);
    std::size_t had = 0;
    got.assign(bytes.size(), std::byte{0});
    while (had != bytes.size()) {
      const auto sent = client_->send(left);
      if (!sent) return tl::unexpected(sent.error());
      std::size_t taken = sent->bytes;
      while (!left.empty() && taken >= left.front().iov_len) {
        taken -= left.front().iov_len;
        left = left.subspan(1);
      }
      if (taken != 0) {
        left.front() = {static_cast<std::byte*>(left.front().iov_base) + taken, left.front().iov_len - taken};
      }
      std::array<iovec, 2> into{iovec{got.data() + had, (got.size() - had) / 2},
                                iovec{got.data() + had + (got.size() - had) / 2, (got.size() - had + 1) / 2}};
      const auto came = server_->receive(into);
      if (!came) return tl::unexpected(came.error());
      had += came->bytes;
    }
    return {};
  }

  Wire forth_;
  Wire back_;
  End left_{forth_, back_};
  End right_{back_, forth_};
  std::unique_ptr<StreamTls> client_;
  std::unique_ptr<StreamTls> server_;
};

TEST_F(StreamTlsTest, CarriesBytesOfAllSizesThroughPipesOfAllWidths) {
  for (const std::size_t room : {std::size_t{100}, std::size_t{20'000}, std::size_t{1} << 24}) {
    forth_.room = back_.room = std::size_t{1} << 24;
    start(1, 1);
    shake_hands();
    forth_.room = room;
    unsigned seed = 0;
    for (const std::size_t size : {1U, 72U, 16383U, 16384U, 16385U, 100'000U}) {
      for (const std::size_t piece : {std::size_t{7}, std::size_t{5000}, std::size_t{16384}, size}) {
        const Bytes sent = noise(size, ++seed);
        Bytes got;
        const Status carried = carry(sent, piece, got);
        ASSERT_TRUE(carried) << carried.error().message;
        ASSERT_EQ(got, sent) << size << " in pieces of " << piece << " through " << room;
        EXPECT_EQ(client_->kept(), 0U);
      }
    }
  }
}

TEST_F(StreamTlsTest, WhatLiesBehindBadMemoryComesRight) {
  start(1, 1);
  shake_hands();
  constexpr std::size_t kPage = 4096;
  constexpr std::size_t kPieces = 30;
  testing::Pages pages(kPieces * kPage);
  std::vector<iovec> into;
  for (std::size_t i = 0; i != kPieces; ++i) {
    into.push_back({pages.data() + i * kPage, kPage});
    if (i % 3 == 1) testing::spoil(pages.part(i * kPage, kPage), testing::Bad::kProtected);
  }
  const Bytes sent = noise(pages.size(), 1);
  const iovec all{const_cast<std::byte*>(sent.data()), sent.size()};
  ASSERT_EQ(client_->send({&all, 1})->bytes, sent.size());
  const auto came = server_->receive(into);
  ASSERT_TRUE(came) << came.error().message;
  EXPECT_TRUE(came->faulted);
  ASSERT_EQ(came->bytes, sent.size());
  for (std::size_t i = 0; i != kPieces; ++i) {
    if (i % 3 == 1) continue;
    const std::byte* const piece = pages.data() + i * kPage;
    EXPECT_TRUE(std::equal(piece, piece + kPage, &sent[i * kPage])) << "piece " << i;
  }
}

TEST_F(StreamTlsTest, SmallPiecesLeaveAndComeWithOneCall) {
  start(1, 1);
  shake_hands();
  left_.sends = right_.receives = 0;
  Bytes got;
  ASSERT_TRUE(carry(noise(1000, 1), 10, got));
  EXPECT_EQ(left_.sends, 1U);
  EXPECT_EQ(right_.receives, 1U);
}

TEST_F(StreamTlsTest, MuchLeavesAndComesWithFewCalls) {
  start(1, 1);
  shake_hands();
  left_.sends = right_.receives = 0;
  Bytes got;
  ASSERT_TRUE(carry(noise(std::size_t{1} << 20, 1), std::size_t{1} << 20, got));
  EXPECT_LE(left_.sends, 9U);
  EXPECT_LE(right_.receives, 9U);
}

TEST_F(StreamTlsTest, TakesNewKeysInBetween) {
  start(1, 1, 3);
  shake_hands();
  for (unsigned round = 0; round != 40; ++round) {
    const Bytes sent = noise(40'000, round);
    Bytes got;
    const Status carried = carry(sent, 9000, got);
    ASSERT_TRUE(carried) << carried.error().message;
    ASSERT_EQ(got, sent);
  }
}

TEST_F(StreamTlsTest, AFloodOfNewKeysEndsIt) {
  start(1, 1, 0);  // one for each record
  shake_hands();
  Bytes got;
  const Status carried = carry(noise(std::size_t{4} << 20, 1), 9000, got);
  ASSERT_FALSE(carried);
  EXPECT_EQ(carried.error().code, ErrorCode::kProtocol);
  EXPECT_THAT(carried.error().message, HasSubstr("new keys"));
}

TEST_F(StreamTlsTest, WhatIsOnTheWireIsNotWhatWasSent) {
  start(1, 1);
  shake_hands();
  const Bytes sent(50'000, std::byte{0x5a});
  const iovec piece{const_cast<std::byte*>(sent.data()), sent.size()};
  ASSERT_EQ(client_->send({&piece, 1}).value().bytes, sent.size());
  EXPECT_GT(forth_.bytes.size(), sent.size());
  const Bytes run(16, std::byte{0x5a});
  EXPECT_EQ(std::search(forth_.bytes.begin(), forth_.bytes.end(), run.begin(), run.end()),
            forth_.bytes.end());
}

TEST_F(StreamTlsTest, RefusesAnotherKey) {
  start(1, 2);
  Status here;
  Status there;
  for (int i = 0; i != 10 && here && there; ++i) {
    here = client_->shake_hands().map([](bool) {});
    there = server_->shake_hands().map([](bool) {});
  }
  EXPECT_FALSE(there);
  EXPECT_FALSE(client_->shake_hands());
}

TEST_F(StreamTlsTest, HandsOutNothingOfARecordThatWasChanged) {
  for (const std::size_t at : {0U, 2U, 5U, 1000U, 16384U + 5, 16384U + 21}) {
    forth_ = back_ = {};
    start(1, 1);
    shake_hands();
    const Bytes sent = noise(16384, 3);
    const iovec piece{const_cast<std::byte*>(sent.data()), sent.size()};
    ASSERT_TRUE(client_->send({&piece, 1}));
    ASSERT_EQ(forth_.bytes.size(), sent.size() + 5 + 1 + 16);
    forth_.bytes[at] ^= std::byte{1};
    Bytes got(sent.size() + 100);
    const iovec into{got.data(), got.size()};
    const auto came = server_->receive({&into, 1});
    EXPECT_TRUE(!came || came->bytes == 0) << at;
    EXPECT_EQ(got, Bytes(got.size())) << at;
    if (at == 2) continue;  // may be a record of another length that has not come yet
    EXPECT_TRUE(at == 3 || !came) << at;
  }
}

TEST_F(StreamTlsTest, BytesOfAnySizesInAnyPiecesArriveAsTheyWere) {
  start(1, 1, 50);  // with new keys now and then
  shake_hands();
  std::mt19937 random(5);
  const auto up_to = [&](std::size_t most) { return 1 + random() % most; };
  for (unsigned round = 0; round != 60; ++round) {
    forth_.room = round % 2 == 0 ? SIZE_MAX : up_to(200'000);
    right_.at_once = up_to(round % 3 == 0 ? 100 : 200'000);
    const Bytes sent = noise(up_to(round % 4 == 0 ? 100 : 100'000), round);
    Bytes got;
    const Status carried = carry(sent, up_to(sent.size()), got);
    ASSERT_TRUE(carried) << carried.error().message;
    ASSERT_EQ(got, sent) << round;
  }
}

// Whatever is changed, added or taken away somewhere: it is told, and no byte is handed out that was not
// sent.
TEST_F(StreamTlsTest, OfAStreamThatWasChangedAnywhereOnlyWhatCameBeforeIsHandedOut) {
  std::mt19937 random(6);
  for (unsigned round = 0; round != 120; ++round) {
    forth_ = back_ = {};
    start(1, 1, round % 3 == 0 ? 2 : 1000);
    shake_hands();
    const Bytes sent = noise(1 + random() % 60'000, round);
    const iovec piece{const_cast<std::byte*>(sent.data()), sent.size()};
    ASSERT_EQ(client_->send({&piece, 1}).value().bytes, sent.size());
    const std::size_t at = random() % forth_.bytes.size();
    const auto place = forth_.bytes.begin() + static_cast<long>(at);
    if (round % 4 == 0) {
      forth_.bytes.erase(place);
    } else if (round % 4 == 1) {
      forth_.bytes.insert(place, static_cast<std::byte>(random()));
    } else {
      *place ^= static_cast<std::byte>(1U << random() % 8);
    }
    forth_.ended = true;
    right_.at_once = 1 + random() % 30'000;
    Bytes got(sent.size() + 1);
    std::size_t had = 0;
    bool told = false;
    while (!told) {
      const iovec into{got.data() + had, got.size() - had};
      const auto came = server_->receive({&into, 1});
      told = !came;
      had += came ? came->bytes : 0;
    }
    ASSERT_LT(had, sent.size()) << round;
    ASSERT_TRUE(std::equal(sent.begin(), sent.begin() + static_cast<long>(had), got.begin())) << round;
    EXPECT_EQ(had % RecordCipher::kMostClear, 0U) << round;
  }
}

TEST_F(StreamTlsTest, ARecordIsNotTakenTwice) {
  start(1, 1);
  shake_hands();
  const Bytes sent = noise(100, 1);
  const iovec piece{const_cast<std::byte*>(sent.data()), sent.size()};
  ASSERT_TRUE(client_->send({&piece, 1}));
  const auto once = forth_.bytes;
  forth_.bytes.insert(forth_.bytes.end(), once.begin(), once.end());
  Bytes got(200);
  EXPECT_EQ(server_->receive_into(std::span(got).first(100)).value(), 100U);
  EXPECT_FALSE(server_->receive_into(std::span(got).subspan(100)));
  EXPECT_EQ(Bytes(got.begin() + 100, got.end()), Bytes(100));
}

TEST_F(StreamTlsTest, ABrokenPipeSaysWhy) {
  start(1, 1);
  shake_hands();
  forth_.ended = true;
  Bytes got(10);
  const iovec into{got.data(), got.size()};
  const auto came = server_->receive({&into, 1});
  ASSERT_FALSE(came);
  EXPECT_EQ(came.error().code, ErrorCode::kPeerGone);
  EXPECT_THAT(came.error().message, HasSubstr("the pipe has ended"));
}

TEST_F(StreamTlsTest, SomethingOtherThanTlsIsRefused) {
  start(1, 1);
  const Bytes other = noise(300, 9);
  forth_.bytes.assign(other.begin(), other.end());
  const auto shaken = server_->shake_hands();
  ASSERT_FALSE(shaken);
  EXPECT_EQ(shaken.error().code, ErrorCode::kProtocol);
}

}  // namespace
}  // namespace p2p::crypto
