// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Streams of `tcp` are reset on their way, all that there are, while the session lives.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "support/eventually.h"
#include "support/hex.h"
#include "support/middlebox.h"
#include "support/peer.h"

namespace p2p::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kSize = 6'000'001;

/// Two sides with a region each that the other one has imported, and a middlebox between them.
class Sides {
 public:
  explicit Sides(const EndpointPlan& plan)
      : peer(plan), box(peer.port()), endpoint(make_endpoint(plan)), own(endpoint, kSize) {
    auto made = endpoint.connect(Middlebox::kHost, peer.port(), kLimit);
    EXPECT_TRUE(is_ok(status_of(made)));
    if (!made) return;
    connection = std::move(*made);
    at_peer = peer.accept();
    theirs = peer.region(kSize);
    const auto imported = connection.import_region(theirs.descriptor);
    EXPECT_TRUE(is_ok(status_of(imported)));
    if (imported) target = {*imported, theirs.descriptor.address, kSize};
    own_id = peer.number(fmt::format("import {} {}", at_peer, to_hex(own.region.descriptor())));
  }

  std::string route() const { return connection.routes().front().detail; }

  void expect_there(std::uint64_t seed) {
    EXPECT_TRUE(is_ok(status_of(peer.call(fmt::format("check {} 0 {} {}", theirs.index, kSize, seed)))));
  }
  void fill_there(std::uint64_t seed) {
    peer.number(fmt::format("fill {} 0 {} {}", theirs.index, kSize, seed));
  }
  std::uint64_t begin_at_peer(const char* operation) {
    return peer.number(fmt::format("{} {} {} 0 {} {} {}", operation, at_peer, theirs.index, kSize, own_id,
                                   own.region.descriptor().address));
  }

  void write(std::uint64_t seed) {
    fill(own.pages.bytes(), seed);
    EXPECT_TRUE(is_ok(connection.write(own.span(0, kSize), target).wait(kLimit)));
    expect_there(seed);
  }
  void read(std::uint64_t seed) {
    fill_there(seed);
    EXPECT_TRUE(is_ok(connection.read(own.span(0, kSize), target).wait(kLimit)));
    EXPECT_EQ(difference(own.pages.bytes(), seed), std::nullopt);
  }
  void write_of_peer(std::uint64_t seed) {
    fill_there(seed);
    EXPECT_TRUE(is_ok(peer.wait(begin_at_peer("write"))));
    EXPECT_EQ(difference(own.pages.bytes(), seed), std::nullopt);
  }
  void read_of_peer(std::uint64_t seed) {
    fill(own.pages.bytes(), seed);
    EXPECT_TRUE(is_ok(peer.wait(begin_at_peer("read"))));
    expect_there(seed);
  }
  void message(std::uint64_t seed) {
    fill(own.pages.bytes(), seed);
    const auto receive = peer.number(fmt::format("recv {} {} 0 {}", at_peer, theirs.index, kSize));
    EXPECT_TRUE(is_ok(connection.send(own.span(0, kSize)).wait(kLimit)));
    EXPECT_TRUE(is_ok(peer.wait(receive)));
    expect_there(seed);
  }
  void list(std::uint64_t seed) {
    fill(own.pages.bytes(), seed);
    std::vector<LocalSpan> from;
    std::vector<RemoteSpan> to;
    for (std::uint64_t at = 0; at < kSize; at += 4099) {
      const std::uint64_t size = std::min<std::uint64_t>(4099, kSize - at);
      from.push_back(own.span(at, size));
      to.push_back({target.region, target.address + at, size});
    }
    EXPECT_TRUE(is_ok(connection.write(from, to).wait(kLimit)));
    expect_there(seed);
  }
  void notification(std::uint64_t seed) {
    const std::string text = fmt::format("{}", seed);
    EXPECT_TRUE(is_ok(connection.notify(text).wait(kLimit)));
    const auto came = peer.call(fmt::format("notified {} {}", at_peer, milliseconds(kLimit).count()));
    ASSERT_TRUE(is_ok(status_of(came)));
    EXPECT_THAT(*came, ::testing::EndsWith(" " + text));
  }

  static constexpr unsigned kOperations = 7;

  void any(unsigned which, std::uint64_t seed) {
    switch (which % kOperations) {
      case 0: return write(seed);
      case 1: return read(seed);
      case 2: return write_of_peer(seed);
      case 3: return read_of_peer(seed);
      case 4: return message(seed);
      case 5: return list(seed);
      default: return notification(seed);
    }
  }

  Peer peer;
  Middlebox box;
  Endpoint endpoint;
  OwnRegion own;
  Connection connection;
  std::uint64_t at_peer = 0;  ///< the same one there
  PeerRegion theirs;
  RemoteSpan target;
  std::uint64_t own_id = 0;
};

/// Over a transport's name as `plan_over` takes it, with so many streams.
class ResetTest : public ::testing::TestWithParam<std::tuple<const char*, unsigned>> {
 protected:
  static EndpointPlan plan() {
    EndpointPlan plan = plan_over(std::get<0>(GetParam()));
    plan.streams = std::get<1>(GetParam());
    plan.workers = kSharingWorkers;  // one operation after the other uses the same memory
    return plan;
  }
};

// In their middle, in the handshake of the stream that comes instead, and between operations.
TEST_P(ResetTest, NothingFailsWhileStreamsComeBack) {
  for (const std::uint64_t seed : {std::uint64_t{1}, std::uint64_t{std::random_device()()}}) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    std::mt19937_64 random(seed);
    Sides sides(plan());
    for (unsigned which = 0; which != Sides::kOperations; ++which) {
      SCOPED_TRACE(which);
      std::vector<std::uint64_t> after{random() % kSize};
      if (random() % 4 == 0) after.push_back(random() % 500);
      sides.box.reset_after(after);
      sides.any(which, random());
      if (HasFailure()) return;
    }
    EXPECT_GT(sides.connection.stats().channels_lost, 0U);
    EXPECT_TRUE(is_ok(sides.connection.status()));
  }
}

// What is started meanwhile waits, and a caller is told how it stands.
TEST_P(ResetTest, AllOfThemAtOnce) {
  const unsigned streams = std::get<1>(GetParam());
  Sides sides(plan());
  for (unsigned which = 0; which != Sides::kOperations; ++which) {
    SCOPED_TRACE(which);
    sides.box.block(true);
    sides.box.cut();
    const std::string none = fmt::format("0 of {} channel", streams);
    ASSERT_TRUE(eventually([&] { return sides.route().starts_with(none); })) << sides.route();
    sides.box.block(false);
    sides.any(which, which + 10);
    if (HasFailure()) return;
  }
  const std::string all = streams == 1 ? "1 channel:" : fmt::format("{} channels:", streams);
  EXPECT_TRUE(eventually([&] { return sides.route().starts_with(all); })) << sides.route();
  EXPECT_TRUE(is_ok(sides.connection.status()));
}

// Whichever side waits for it.
TEST_P(ResetTest, WhatNeverComesBackIsLostInTime) {
  for (const bool here : {true, false}) {
    SCOPED_TRACE(here ? "a write of the side that dialled" : "a write of the side that was dialled");
    EndpointPlan quick = plan();
    quick.keepalive = milliseconds(1000);
    Sides sides(quick);
    sides.box.block(true);
    sides.box.cut();
    const auto start = Clock::now();
    Status ended;
    if (here) {
      ended = sides.connection.write(sides.own.span(0, kSize), sides.target).wait(kLimit);
    } else {
      ended = sides.peer.wait(sides.begin_at_peer("write"));
    }
    EXPECT_LT(Clock::now() - start, quick.keepalive + kMargin);
    ASSERT_TRUE(is_error(ended, {ErrorCode::kPeerGone}));
    EXPECT_TRUE(eventually([&] { return !sides.connection.status(); }));
    const std::string why = sides.connection.status().error().message;
    EXPECT_THAT(why, HasSubstr("tcp"));
    EXPECT_THAT(why, HasSubstr("none of its channels came back in time"));
  }
}

// They wait in a lane without a channel, which nothing looks at.
TEST_P(ResetTest, WhatIsCancelledMeanwhileEndsAtOnce) {
  EndpointPlan slow = plan();
  slow.keepalive = 2 * kLimit;
  Sides sides(slow);
  sides.box.block(true);
  sides.box.cut();
  ASSERT_TRUE(eventually([&] { return sides.route().starts_with("0 of "); })) << sides.route();
  const Transfer write = sides.connection.write(sides.own.span(0, kSize), sides.target);
  EXPECT_TRUE(is_error(write.wait(milliseconds(1)), {ErrorCode::kTimedOut}));
  write.cancel();
  EXPECT_TRUE(is_error(write.wait(kLimit / 2), {ErrorCode::kCancelled}));
  sides.box.block(false);
  sides.write(7);
}

INSTANTIATE_TEST_SUITE_P(Streams, ResetTest,
                         ::testing::Combine(::testing::Values("tcp", "tcp_tls"), ::testing::Values(1U, 3U)),
                         [](const auto& each) {
                           return fmt::format("{}_{}", std::get<0>(each.param), std::get<1>(each.param));
                         });

}  // namespace
}  // namespace p2p::testing
