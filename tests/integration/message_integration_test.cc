// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "support/peer.h"
#include "support/transports.h"

namespace p2p::testing::message {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

class MessageTest : public OverTransport {
 protected:
  MessageTest() : pair(plan_over(GetParam())) {}

  std::uint64_t peer_recv(const PeerRegion& region, std::size_t offset, std::size_t size) {
    return pair.peer.number(fmt::format("recv {} {} {} {}", pair.at_peer, region.index, offset, size));
  }

  std::uint64_t peer_send(const PeerRegion& region, std::size_t offset, std::size_t size) {
    return pair.peer.number(fmt::format("send {} {} {} {}", pair.at_peer, region.index, offset, size));
  }

  Status peer_checks(const PeerRegion& region, std::size_t offset, std::size_t size, std::uint64_t seed) {
    return status_of(pair.peer.call(fmt::format("check {} {} {} {}", region.index, offset, size, seed)));
  }

  /// "SIZE true|false TEXT" of the next notification there.
  std::string peer_notified() {
    const auto answer = pair.peer.call(
        fmt::format("notified {} {}", pair.at_peer, std::chrono::milliseconds(kLimit).count()));
    EXPECT_TRUE(is_ok(status_of(answer)));
    return answer.value_or("");
  }

  Pair pair;
};
P2P_OVER_TRANSPORTS_AND_TLS(MessageTest);

TEST_P(MessageTest, SendMeetsReceiveInEitherOrder) {
  const std::size_t size = 3 * kMiB + 1;
  OwnRegion own(pair.endpoint, size);
  const PeerRegion theirs = pair.peer.region(2 * size);
  fill(own.pages.bytes(), 1);
  const std::uint64_t first = peer_recv(theirs, 0, size);
  EXPECT_TRUE(is_ok(pair.connection.send(own.span(0, size)).wait(kLimit)));
  EXPECT_TRUE(is_ok(pair.peer.wait(first)));

  const Transfer early = pair.connection.send(own.span(0, size));
  EXPECT_FALSE(early.done());
  const std::uint64_t second = peer_recv(theirs, size, size);
  EXPECT_TRUE(is_ok(early.wait(kLimit)));
  EXPECT_TRUE(is_ok(pair.peer.wait(second)));
  EXPECT_TRUE(is_ok(peer_checks(theirs, 0, size, 1)));
  EXPECT_TRUE(is_ok(peer_checks(theirs, size, size, 1)));
}

TEST_P(MessageTest, ShorterMessageTellsItsSize) {
  OwnRegion own(pair.endpoint, 10000);
  const PeerRegion theirs = pair.peer.region(10000);
  pair.peer.number(fmt::format("fill {} 0 1234 9", theirs.index));
  for (const std::size_t size : {std::size_t{1234}, std::size_t{1}, std::size_t{0}}) {
    set_all(own.pages.bytes(), std::byte{});
    const Transfer receive = pair.connection.recv(own.span(0, 10000));
    EXPECT_TRUE(is_ok(pair.peer.wait(peer_send(theirs, 0, size))));
    ASSERT_TRUE(is_ok(receive.wait(kLimit)));
    EXPECT_EQ(receive.bytes(), size);
    EXPECT_EQ(first_not(own.part(size, 10000 - size), std::byte{}), std::nullopt);
    if (size == 1234) {
      EXPECT_EQ(difference(own.part(0, size), 9), std::nullopt);
    }
  }
}

TEST_P(MessageTest, LongerMessageFailsBothSides) {
  OwnRegion own(pair.endpoint, 2 * kMiB);
  const PeerRegion theirs = pair.peer.region(2 * kMiB);
  const std::uint64_t receive = peer_recv(theirs, 0, kMiB);
  EXPECT_TRUE(
      is_error(pair.connection.send(own.span(0, kMiB + 1)).wait(kLimit), {ErrorCode::kMessageTooLong}));
  EXPECT_TRUE(is_error(pair.peer.wait(receive), {ErrorCode::kMessageTooLong}));

  // The next pair of them meets as if nothing had been.
  fill(own.pages.bytes(), 5);
  const std::uint64_t next = peer_recv(theirs, 0, 2 * kMiB);
  EXPECT_TRUE(is_ok(pair.connection.send(own.span(0, 2 * kMiB)).wait(kLimit)));
  EXPECT_TRUE(is_ok(pair.peer.wait(next)));
  EXPECT_TRUE(is_ok(peer_checks(theirs, 0, 2 * kMiB, 5)));
}

TEST_P(MessageTest, WrongSpansFailAtOnceAndTakeNoTurn) {
  OwnRegion own(pair.endpoint, 4096);
  const PeerRegion theirs = pair.peer.region(4096);
  LocalSpan unknown = own.span(0, 10);
  unknown.region = RegionId{4711};
  using Post = Transfer (Connection::*)(const LocalSpan&) const;
  for (const Post post : {Post(&Connection::send), Post(&Connection::recv)}) {
    const Transfer lost = (pair.connection.*post)(unknown);
    EXPECT_TRUE(is_error(lost.wait(kLimit), {ErrorCode::kNotFound})) << "with nothing posted at the peer";
    const Transfer cut = (pair.connection.*post)(own.span(4000, 97));
    EXPECT_TRUE(is_error(cut.wait(kLimit), {ErrorCode::kOutOfRange}));
  }
  fill(own.pages.bytes(), 3);
  const std::uint64_t receive = peer_recv(theirs, 0, 4096);
  EXPECT_TRUE(is_ok(pair.connection.send(own.span(0, 4096)).wait(kLimit)));
  EXPECT_TRUE(is_ok(pair.peer.wait(receive)));
  EXPECT_TRUE(is_ok(peer_checks(theirs, 0, 4096, 3)));
}

TEST_P(MessageTest, OrderHoldsOverManyBothWays) {
  constexpr std::size_t kSize = 5000;
  const std::size_t count = static_cast<std::size_t>(scaled(200, 50));
  OwnRegion own(pair.endpoint, 2 * count * kSize);
  const PeerRegion theirs = pair.peer.region(2 * count * kSize);
  std::vector<Transfer> mine;
  std::vector<std::uint64_t> peers;
  for (std::size_t i = 0; i < count; ++i) {
    fill(own.part(i * kSize, kSize), i);
    pair.peer.number(fmt::format("fill {} {} {} {}", theirs.index, i * kSize, kSize, i + 7));
    mine.push_back(pair.connection.send(own.span(i * kSize, kSize)));
    mine.push_back(pair.connection.recv(own.span((count + i) * kSize, kSize)));
    peers.push_back(peer_recv(theirs, (count + i) * kSize, kSize));
    peers.push_back(peer_send(theirs, i * kSize, kSize));
  }
  for (const Transfer& transfer : mine) ASSERT_TRUE(is_ok(transfer.wait(kLimit)));
  for (const std::uint64_t transfer : peers) ASSERT_TRUE(is_ok(pair.peer.wait(transfer)));
  for (std::size_t i = 0; i < count; ++i) {
    EXPECT_EQ(difference(own.part((count + i) * kSize, kSize), i + 7), std::nullopt);
    EXPECT_TRUE(is_ok(peer_checks(theirs, (count + i) * kSize, kSize, i)));
  }
}

TEST_P(MessageTest, ShortOnesOfEveryLengthKeepTheirOrderAmongLongOnes) {
  const std::vector<std::size_t> sizes{0, 1, 63, 4096, 16383, 16384, 16385, 100'000, 5, 700'000, 2, 16384};
  std::size_t all = 0;
  for (const std::size_t size : sizes) all += size;
  OwnRegion own(pair.endpoint, all);
  const PeerRegion theirs = pair.peer.region(all);
  for (const bool posted_ahead : {true, false}) {
    std::vector<std::uint64_t> receives;
    std::vector<Transfer> sends;
    std::size_t at = 0;
    for (std::size_t i = 0; i < sizes.size(); at += sizes[i++]) {
      fill(own.part(at, sizes[i]), 100 * i + (posted_ahead ? 1 : 2));
      if (posted_ahead) receives.push_back(peer_recv(theirs, at, sizes[i]));
    }
    at = 0;
    for (std::size_t i = 0; i < sizes.size(); at += sizes[i++])
      sends.push_back(pair.connection.send(own.span(at, sizes[i])));
    at = 0;
    for (std::size_t i = 0; i < sizes.size() && !posted_ahead; at += sizes[i++]) {
      receives.push_back(peer_recv(theirs, at, sizes[i]));
    }
    for (const Transfer& send : sends) EXPECT_TRUE(is_ok(send.wait(kLimit)));
    for (const std::uint64_t receive : receives) EXPECT_TRUE(is_ok(pair.peer.wait(receive)));
    at = 0;
    for (std::size_t i = 0; i < sizes.size(); at += sizes[i++]) {
      EXPECT_TRUE(is_ok(peer_checks(theirs, at, sizes[i], 100 * i + (posted_ahead ? 1 : 2)))) << sizes[i];
    }
  }
}

TEST_P(MessageTest, AReceiverThatPostsNothingStopsItsSenderAndNobodyElse) {
  constexpr std::size_t kSize = 8192;
  constexpr std::size_t kCount = 400;  // more than it keeps
  OwnRegion own(pair.endpoint, kSize * kCount);
  const PeerRegion theirs = pair.peer.region(kSize * kCount);
  std::vector<Transfer> sends;
  for (std::size_t i = 0; i < kCount; ++i) {
    fill(own.part(i * kSize, kSize), i);
    sends.push_back(pair.connection.send(own.span(i * kSize, kSize)));
  }
  EXPECT_TRUE(is_ok(pair.connection.notify("past them").wait(kLimit)));
  EXPECT_TRUE(peer_notified().starts_with("9 "));
  const std::uint64_t back = pair.peer.number(fmt::format("notify {} 10 1", pair.at_peer));
  EXPECT_TRUE(is_ok(pair.peer.wait(back)));
  for (const Transfer& send : sends) EXPECT_FALSE(send.done());
  std::vector<std::uint64_t> receives;
  for (std::size_t i = 0; i < kCount; ++i) receives.push_back(peer_recv(theirs, i * kSize, kSize));
  for (const Transfer& send : sends) ASSERT_TRUE(is_ok(send.wait(kLimit)));
  for (const std::uint64_t receive : receives) ASSERT_TRUE(is_ok(pair.peer.wait(receive)));
  for (std::size_t i = 0; i < kCount; ++i) EXPECT_TRUE(is_ok(peer_checks(theirs, i * kSize, kSize, i)));
}

TEST_P(MessageTest, CancelledSendsEndWithoutAReceiver) {
  OwnRegion own(pair.endpoint, kMiB);
  const PeerRegion theirs = pair.peer.region(kMiB);
  for (const std::size_t size : {std::size_t{100}, kMiB}) {
    const Transfer given_up = pair.connection.send(own.span(0, size));
    given_up.cancel();
    EXPECT_TRUE(is_error(given_up.wait(kLimit), {ErrorCode::kCancelled}));
    const std::uint64_t unmet = peer_recv(theirs, 0, size);
    const std::uint64_t met = peer_recv(theirs, 0, size);
    EXPECT_TRUE(is_error(pair.peer.wait(unmet), {ErrorCode::kCancelled}));
    EXPECT_TRUE(is_ok(pair.connection.send(own.span(0, size)).wait(kLimit)));
    EXPECT_TRUE(is_ok(pair.peer.wait(met)));
  }
}

TEST_P(MessageTest, ScatteredMessageFillsTheReceiveFromItsStart) {
  OwnRegion own(pair.endpoint, 30000);
  const PeerRegion theirs = pair.peer.region(30000);
  fill(own.part(0, 9000), 3);
  const std::vector<LocalSpan> pieces{own.span(0, 1000), own.span(1000, 5000), own.span(6000, 3000)};
  const std::uint64_t receive = peer_recv(theirs, 0, 30000);
  EXPECT_TRUE(is_ok(pair.connection.send(pieces).wait(kLimit)));
  EXPECT_TRUE(is_ok(pair.peer.wait(receive)));
  EXPECT_TRUE(is_ok(peer_checks(theirs, 0, 9000, 3)));
}

TEST_P(MessageTest, NotificationsOfAnyLengthComeOnceAndInOrder) {
  const std::vector<std::size_t> sizes{0, 1, 65536, 20'000'000, 3, 1'048'576, 0, 5};
  std::vector<Transfer> sent;
  for (const std::size_t size : sizes) {
    std::string payload(size, '\0');
    fill(std::as_writable_bytes(std::span(payload)), size);
    sent.push_back(pair.connection.notify(payload));
  }
  for (const Transfer& transfer : sent) EXPECT_TRUE(is_ok(transfer.wait(kLimit)));
  for (const std::size_t size : sizes) {
    EXPECT_TRUE(peer_notified().starts_with(fmt::format("{} true", size))) << size;
  }
  EXPECT_FALSE(pair.peer.call(fmt::format("notified {} 200", pair.at_peer)));
}

// A side that takes none is not filled, and what goes besides notifications goes on.
TEST_P(MessageTest, NotificationsThatNobodyTakesWaitAtTheirSender) {
  EndpointPlan plan = plan_over(GetParam());
  Options few = plan.options();
  few.notifications = 16;
  auto endpoint = Endpoint::create(few);
  ASSERT_TRUE(is_ok(status_of(endpoint)));
  const std::uint64_t there = pair.peer.number(fmt::format(
      "connect {} {} {}", endpoint->address(), endpoint->port(), std::chrono::milliseconds(kLimit).count()));
  auto connection = endpoint->accept(kLimit);
  ASSERT_TRUE(is_ok(status_of(connection)));
  constexpr int kCount = 2000;
  std::vector<std::uint64_t> notifications;
  for (int i = 0; i < kCount; ++i) {
    notifications.push_back(pair.peer.number(fmt::format("notify {} {} {}", there, 1000, i)));
  }
  // What is posted after them is through, and they are not.
  OwnRegion own(*endpoint, kMiB);
  const PeerRegion theirs = pair.peer.region(kMiB);
  const auto id = connection->import_region(theirs.descriptor);
  ASSERT_TRUE(is_ok(status_of(id)));
  EXPECT_TRUE(
      is_ok(connection->write(own.span(0, kMiB), {*id, theirs.descriptor.address, kMiB}).wait(kLimit)));
  EXPECT_TRUE(is_ok(pair.peer.wait(notifications[15])));
  EXPECT_EQ(connection->stats().notifications_received, 16U);
  std::size_t taken = 0;
  const auto deadline = std::chrono::steady_clock::now() + kLimit;
  while (taken < kCount && std::chrono::steady_clock::now() < deadline) {
    const auto some = connection->take_notifications();
    EXPECT_LE(some.size(), 16U);
    taken += some.size();
  }
  EXPECT_EQ(taken, static_cast<std::size_t>(kCount));
  EXPECT_TRUE(is_ok(pair.peer.wait(notifications.back())));
}

TEST_P(MessageTest, NotificationComesAfterItsDataWithoutACallAtTheTarget) {
  const std::size_t size = 16 * kMiB;
  OwnRegion own(pair.endpoint, size);
  const PeerRegion theirs = pair.peer.region(size);
  const auto id = pair.connection.import_region(theirs.descriptor);
  ASSERT_TRUE(is_ok(status_of(id)));
  for (std::uint64_t round = 1; round <= 5; ++round) {
    fill(own.pages.bytes(), round);
    PostOptions options;
    options.notification = fmt::format("round-{}", round);
    const Transfer write =
        pair.connection.write(own.span(0, size), {*id, theirs.descriptor.address, size}, options);
    // The check follows the notification at once, whether or not the writer knows that it is done.
    EXPECT_NE(peer_notified().find(*options.notification), std::string::npos);
    EXPECT_TRUE(is_ok(peer_checks(theirs, 0, size, round)));
    EXPECT_TRUE(is_ok(write.wait(kLimit)));
  }
}

TEST_P(MessageTest, EmptyNotificationOfAReadTellsTheOwner) {
  OwnRegion own(pair.endpoint, kMiB);
  const PeerRegion theirs = pair.peer.region(kMiB);
  const auto id = pair.connection.import_region(theirs.descriptor);
  ASSERT_TRUE(is_ok(status_of(id)));
  PostOptions options;
  options.notification = "";
  const Transfer read =
      pair.connection.read(own.span(0, kMiB), {*id, theirs.descriptor.address, kMiB}, options);
  EXPECT_TRUE(peer_notified().starts_with("0 "));
  EXPECT_TRUE(is_ok(read.wait(kLimit)));
}

TEST_P(MessageTest, PeerNotifiesToo) {
  const std::uint64_t sent = pair.peer.number(fmt::format("notify {} 3000000 8", pair.at_peer));
  EXPECT_TRUE(is_ok(pair.peer.wait(sent)));
  const auto come = pair.connection.take_notifications();
  ASSERT_EQ(come.size(), 1u);
  EXPECT_EQ(come[0].size(), 3'000'000u);
  EXPECT_EQ(difference(std::as_bytes(std::span(come[0])), 8), std::nullopt);
}

}  // namespace
}  // namespace p2p::testing::message
