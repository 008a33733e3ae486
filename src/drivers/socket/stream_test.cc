// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/socket/stream.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <vector>

#include "base/bytes.h"
#include "base/io_vector.h"
#include "support/memory.h"

namespace p2p::socket {
namespace {

constexpr std::size_t kPage = 4096;

class StreamTest : public ::testing::Test {
 protected:
  StreamTest() {
    std::array<int, 2> ends{-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
    from_ = std::make_unique<Stream>(UniqueFd(ends[0]));
    into_ = std::make_unique<Stream>(UniqueFd(ends[1]));
  }

  /// Cut into pieces of at most `most` bytes.
  std::vector<iovec> cut(std::span<std::byte> bytes, std::size_t most) {
    std::vector<iovec> pieces;
    while (!bytes.empty()) {
      const std::size_t size = std::min(bytes.size(), 1 + random_() % most);
      pieces.push_back({bytes.data(), size});
      bytes = bytes.subspan(size);
    }
    return pieces;
  }

  struct Outcome {
    bool sent_bad = false;
    bool landed_bad = false;
  };

  /// Moves all of it; behind bad memory at the sender zeros follow.
  Outcome move(std::vector<iovec> out, std::vector<iovec> in) {
    std::span<iovec> left(out);
    std::span<iovec> room(in);
    Bytes zeros(total_bytes(out));
    iovec rest{};
    Outcome outcome;
    for (int calls = 0; !room.empty() && calls != 100'000; ++calls) {
      const auto sent = from_->try_send(left.first(std::min<std::size_t>(left.size(), 1024)), 0);
      EXPECT_TRUE(sent);
      left = left.subspan(cut_front(left, sent->bytes));
      if (sent->faulted) {
        outcome.sent_bad = true;
        rest = {zeros.data(), total_bytes(left)};
        left = {&rest, 1};
      }
      const auto came = into_->try_receive(room.first(std::min<std::size_t>(room.size(), 1024)));
      EXPECT_TRUE(came);
      outcome.landed_bad = outcome.landed_bad || came->faulted;
      room = room.subspan(cut_front(room, came->bytes));
    }
    EXPECT_TRUE(room.empty());
    EXPECT_EQ(from_->kept(), 0U);
    return outcome;
  }

  std::mt19937 random_{7};
  std::unique_ptr<Stream> from_;
  std::unique_ptr<Stream> into_;
};

TEST_F(StreamTest, PiecesOfAllSizesArriveAsTheyWere) {
  for (const std::size_t out : {3U, 132U, 1000U, 3000U, 100'000U}) {
    for (const std::size_t in : {3U, 132U, 1000U, 3000U, 100'000U}) {
      Bytes sent(out == 3 || in == 3 ? 50'000 : 3'000'000);
      testing::fill(sent, out + in);
      Bytes got(sent.size());
      const Outcome outcome = move(cut(sent, out), cut(got, in));
      ASSERT_EQ(got, sent) << out << " to " << in;
      EXPECT_FALSE(outcome.sent_bad || outcome.landed_bad);
    }
  }
}

TEST_F(StreamTest, WhatTheSocketDoesNotTakeIsKeptAndGoesFirst) {
  Bytes sent(8'000'000);
  testing::fill(sent, 1);
  auto pieces = cut(sent, 200);
  std::span<iovec> left(pieces);
  std::size_t taken = 0;
  while (from_->kept() == 0) {
    const auto moved = from_->try_send(left.first(1024), 0);
    ASSERT_TRUE(moved);
    taken += moved->bytes;
    left = left.subspan(cut_front(left, moved->bytes));
    ASSERT_EQ(moved->blocked, from_->kept() != 0);
  }
  const std::size_t kept = from_->kept();
  ASSERT_EQ(from_->try_send(left.first(1024), 0)->bytes, 0U);
  ASSERT_EQ(from_->kept(), kept);
  Bytes got(taken);
  for (std::size_t had = 0; had != taken;) {
    const auto came = into_->receive_into(std::span(got).subspan(had));
    ASSERT_TRUE(came);
    had += came->bytes;
    ASSERT_TRUE(from_->try_send({}, 0));
  }
  EXPECT_TRUE(std::equal(got.begin(), got.end(), sent.begin()));
}

TEST_F(StreamTest, SmallPiecesOfBadMemoryAreTold) {
  testing::Pages own(8 * kPage);
  testing::Pages other(8 * kPage);
  testing::fill(own.bytes(), 1);
  testing::spoil(other.part(2 * kPage, kPage), testing::Bad::kProtected);
  const Outcome landed = move(cut(own.bytes(), 300), cut(other.bytes(), 300));
  EXPECT_TRUE(landed.landed_bad);
  EXPECT_FALSE(landed.sent_bad);
  EXPECT_TRUE(std::equal(other.data(), other.data() + 2 * kPage - 300, own.data()));
  EXPECT_TRUE(
      std::equal(own.data() + 3 * kPage + 300, own.data() + own.size(), other.data() + 3 * kPage + 300));

  testing::Pages target(8 * kPage);
  const Outcome sent = move(cut(other.bytes(), 300), cut(target.bytes(), 300));
  EXPECT_TRUE(sent.sent_bad);
  EXPECT_FALSE(sent.landed_bad);
  EXPECT_TRUE(std::equal(target.data(), target.data() + 2 * kPage - 300, other.data()));
}

}  // namespace
}  // namespace p2p::socket
