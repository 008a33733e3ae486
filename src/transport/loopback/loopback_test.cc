// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/loopback/loopback.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "support/memory.h"

namespace p2p::loopback {
namespace {

ChannelSetup setup_of(Role role, std::byte secret = std::byte{7}) {
  const bool connects = role == Role::kConnector;
  ChannelSetup setup{
      .role = role, .local_incarnation = connects ? 1U : 2U, .peer_incarnation = connects ? 2U : 1U};
  setup.secret.fill(secret);
  return setup;
}

std::unique_ptr<Channel> open(Transport& transport, const ChannelSetup& setup) {
  auto channel = transport.open_channel(setup);
  EXPECT_TRUE(channel) << channel.error().message;
  return *std::move(channel);
}

ErrorCode refusal(Channel& channel, std::span<const std::byte> address) {
  const Status status = channel.connect(address);
  EXPECT_FALSE(status);
  return status ? ErrorCode::kSystem : status.error().code;
}

// A peer on another machine may send back the names that it was sent.
TEST(Loopback, OnlyTheOtherEndOfTheSessionIsReached) {
  const auto transport = make({}, nullptr);
  const auto left = open(*transport, setup_of(Role::kConnector));
  const auto sibling = open(*transport, setup_of(Role::kConnector));
  const auto stranger = open(*transport, setup_of(Role::kAcceptor, std::byte{8}));
  ChannelSetup older = setup_of(Role::kAcceptor);
  older.local_incarnation = 3;
  const auto restarted = open(*transport, older);
  EXPECT_EQ(refusal(*left, left->address()), ErrorCode::kPermissionDenied);
  EXPECT_EQ(refusal(*left, sibling->address()), ErrorCode::kPermissionDenied);
  EXPECT_EQ(refusal(*left, stranger->address()), ErrorCode::kPermissionDenied);
  EXPECT_EQ(refusal(*left, restarted->address()), ErrorCode::kPermissionDenied);
  EXPECT_EQ(refusal(*left, std::vector<std::byte>(16)), ErrorCode::kUnavailable);
  EXPECT_EQ(left->state(), ChannelState::kConnecting);
}

TEST(Loopback, AChannelHasOnePartner) {
  const auto transport = make({}, nullptr);
  const auto left = open(*transport, setup_of(Role::kConnector));
  const auto second = open(*transport, setup_of(Role::kConnector));
  auto right = open(*transport, setup_of(Role::kAcceptor));
  ASSERT_TRUE(left->connect(right->address()));
  EXPECT_EQ(refusal(*second, right->address()), ErrorCode::kPeerGone);
  const auto address = right->address();
  right.reset();
  EXPECT_EQ(refusal(*second, address), ErrorCode::kPeerGone);
}

TEST(Loopback, ChannelsMayOutliveThePeersTransport) {
  auto theirs = make({}, nullptr);
  const auto mine = make({}, nullptr);
  std::array<std::byte, 8> bytes{};
  const RegionInfo info{.id = RegionId{1}, .base = bytes.data(), .size = bytes.size()};
  const auto registration = theirs->register_memory(info);
  ASSERT_TRUE(registration);
  const auto left = open(*mine, setup_of(Role::kConnector));
  auto right = open(*theirs, setup_of(Role::kAcceptor));
  ASSERT_TRUE(left->connect(right->address()));
  theirs->revoke_memory(**registration);
  right.reset();
  theirs.reset();
  const RemoteKey key(info);
  std::array<std::byte, 8> local{};
  const std::vector<Segment> segments{{.local = local.data(),
                                       .remote = reinterpret_cast<std::uint64_t>(bytes.data()),
                                       .size = 8,
                                       .key = &key}};
  ASSERT_TRUE(left->post({.segments = segments, .bytes = 8}));
  EXPECT_TRUE(left->busy());
  std::vector<Completion> completions;
  EXPECT_TRUE(left->progress(completions));
  ASSERT_EQ(completions.size(), 1U);
  ASSERT_FALSE(completions[0].status);
  EXPECT_EQ(completions[0].status.error().code, ErrorCode::kPeerGone);
  EXPECT_EQ(left->state(), ChannelState::kFailed);
}

TEST(Loopback, BadMemoryOfEitherEndFailsItsBatchAlone) {
  const auto transport = make({}, nullptr);
  constexpr std::size_t kPage = 4096;
  testing::Pages pages(3 * kPage);
  const RegionInfo info{.id = RegionId{1}, .base = pages.data(), .size = pages.size()};
  const auto registration = transport->register_memory(info);
  ASSERT_TRUE(registration);
  testing::spoil(pages.part(kPage, kPage), testing::Bad::kReadOnly);
  testing::spoil(pages.part(2 * kPage, kPage), testing::Bad::kCut);
  const auto left = open(*transport, setup_of(Role::kConnector));
  const auto right = open(*transport, setup_of(Role::kAcceptor));
  ASSERT_TRUE(left->connect(right->address()));
  const RemoteKey key(info);
  std::array<std::byte, 64> good{};
  const auto outcome = [&](Operation operation, std::byte* local, std::byte* remote) {
    const std::vector<Segment> segments{
        {.local = local, .remote = reinterpret_cast<std::uint64_t>(remote), .size = 64, .key = &key}};
    EXPECT_TRUE(left->post({.operation = operation, .segments = segments, .bytes = 64}));
    std::vector<Completion> completions;
    left->progress(completions);
    return completions.at(0).status;
  };
  const auto page = [&](std::size_t number) { return pages.data() + number * kPage; };
  for (const std::size_t bad : {1U, 2U}) {
    const Status into = outcome(Operation::kWrite, good.data(), page(bad));
    ASSERT_FALSE(into);
    EXPECT_EQ(into.error().code, ErrorCode::kSystem);
    EXPECT_THAT(into.error().message, ::testing::HasSubstr("write to 64 bytes"));
    EXPECT_FALSE(outcome(Operation::kRead, page(bad), page(0)));
  }
  EXPECT_TRUE(outcome(Operation::kRead, good.data(), page(1)));
  const Status from = outcome(Operation::kWrite, page(2), page(0));
  ASSERT_FALSE(from);
  EXPECT_THAT(from.error().message, ::testing::HasSubstr("read 64 bytes"));
  EXPECT_TRUE(outcome(Operation::kWrite, good.data(), page(0)));
  EXPECT_EQ(left->state(), ChannelState::kReady);
}

TEST(Loopback, ThreadsMayOpenAndCloseAtOnce) {
  const auto churn = [] {
    const auto transport = make({}, nullptr);
    for (int i = 0; i < 200; ++i) {
      const auto left = open(*transport, setup_of(Role::kConnector));
      const auto right = open(*transport, setup_of(Role::kAcceptor));
      EXPECT_TRUE(left->connect(right->address()));
      EXPECT_TRUE(right->connect(left->address()));
    }
  };
  std::thread first(churn);
  std::thread second(churn);
  first.join();
  second.join();
}

}  // namespace
}  // namespace p2p::loopback
