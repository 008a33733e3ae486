// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Streams of `tcp` that nothing uses are closed, and opened again by whatever comes next.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <optional>
#include <random>
#include <string>
#include <thread>

#include "support/eventually.h"
#include "support/hex.h"
#include "support/peer.h"

namespace p2p::testing::idle {
namespace {

using std::chrono::milliseconds;

constexpr unsigned kStreams = 3;

// Bytes of one operation after the other land in the same memory. Where two workers land them, the other
// process makes the order, and the thread sanitizer cannot see it.
#if defined(P2P_TSAN)
constexpr unsigned kWorkers = 1;
#else
constexpr unsigned kWorkers = 2;
#endif

constexpr std::uint64_t kSize = 300'000;

EndpointPlan plan_of(milliseconds idle) {
  return {.transport = "tcp", .workers = kWorkers, .streams = kStreams, .idle = idle};
}

/// Two sides with a region each that the other one has imported.
class Sides {
 public:
  Sides(const EndpointPlan& here, const EndpointPlan& there) : peer(there), endpoint(make_endpoint(here)) {
    files_here = usage_of(::getpid()).open_files;
    files_there = usage_of(peer.process().pid()).open_files;
    auto made = endpoint.connect(peer.address(), peer.port(), kLimit);
    EXPECT_TRUE(is_ok(status_of(made)));
    if (!made) return;
    connection = std::move(*made);
    number = peer.accept();
    own.emplace(endpoint, kSize);
    theirs = peer.region(kSize);
    const auto imported = connection.import_region(theirs.descriptor);
    EXPECT_TRUE(is_ok(status_of(imported)));
    if (imported) target = {*imported, theirs.descriptor.address, kSize};
    own_id = peer.number(fmt::format("import {} {}", number, to_hex(own->region.descriptor())));
  }

  bool rests() const { return connection.routes().front().detail.find("at rest") != std::string::npos; }

  void write(std::uint64_t seed) {
    fill(own->pages.bytes(), seed);
    EXPECT_TRUE(is_ok(connection.write(own->span(0, kSize), target).wait(kLimit)));
    EXPECT_TRUE(is_ok(status_of(peer.call(fmt::format("check {} 0 {} {}", theirs.index, kSize, seed)))));
  }

  void read(std::uint64_t seed) {
    peer.number(fmt::format("fill {} 0 {} {}", theirs.index, kSize, seed));
    EXPECT_TRUE(is_ok(connection.read(own->span(0, kSize), target).wait(kLimit)));
    EXPECT_EQ(difference(own->pages.bytes(), seed), std::nullopt);
  }

  void write_of_peer(std::uint64_t seed) {
    peer.number(fmt::format("fill {} 0 {} {}", theirs.index, kSize, seed));
    const auto address = own->region.descriptor().address;
    const auto write = fmt::format("write {} {} 0 {} {} {}", number, theirs.index, kSize, own_id, address);
    EXPECT_TRUE(is_ok(peer.wait(peer.number(write))));
    EXPECT_EQ(difference(own->pages.bytes(), seed), std::nullopt);
  }

  void message(std::uint64_t seed) {
    fill(own->pages.bytes(), seed);
    const auto receive = peer.number(fmt::format("recv {} {} 0 {}", number, theirs.index, kSize));
    EXPECT_TRUE(is_ok(connection.send(own->span(0, kSize)).wait(kLimit)));
    EXPECT_TRUE(is_ok(peer.wait(receive)));
    EXPECT_TRUE(is_ok(status_of(peer.call(fmt::format("check {} 0 {} {}", theirs.index, kSize, seed)))));
  }

  void notification(std::uint64_t seed) {
    const std::string text = fmt::format("{}", seed);
    EXPECT_TRUE(is_ok(connection.notify(text).wait(kLimit)));
    const auto came = peer.call(fmt::format("notified {} {}", number, milliseconds(kLimit).count()));
    ASSERT_TRUE(is_ok(status_of(came)));
    EXPECT_THAT(*came, ::testing::EndsWith(" " + text));
  }

  void any(unsigned which, std::uint64_t seed) {
    switch (which % 5) {
      case 0: return write(seed);
      case 1: return read(seed);
      case 2: return write_of_peer(seed);
      case 3: return message(seed);
      default: return notification(seed);
    }
  }

  Peer peer;
  Endpoint endpoint;
  long files_here = 0;  ///< open before there was a connection
  long files_there = 0;
  Connection connection;
  std::uint64_t number = 0;  ///< the same one there
  std::optional<OwnRegion> own;
  PeerRegion theirs;
  RemoteSpan target;
  std::uint64_t own_id = 0;
};

// Whichever side closes the streams, and whichever needs them again.
TEST(Idle, APeerAtRestCostsOneDescriptorAndWakesForEveryOperation) {
  const EndpointPlan patient = plan_of(milliseconds(0));
  const EndpointPlan impatient = plan_of(milliseconds(100));
  for (const bool here : {true, false}) {
    SCOPED_TRACE(here ? "closed by the side that dialled" : "closed by the side that was dialled");
    Sides sides(here ? impatient : patient, here ? patient : impatient);
    const auto pid = sides.peer.process().pid();
    for (unsigned which = 0; which != 5; ++which) {
      SCOPED_TRACE(which);
      ASSERT_TRUE(eventually([&] { return sides.rests(); })) << sides.connection.routes().front().detail;
      sides.any(which, which + 1);
    }
    // What is left is the session's connection.
    EXPECT_TRUE(eventually([&] { return usage_of(::getpid()).open_files == sides.files_here + 1; }));
    EXPECT_TRUE(eventually([&] { return usage_of(pid).open_files == sides.files_there + 1; }));
  }
}

// Uses that meet the very moment at which one side or both begin to rest.
TEST(Idle, NothingIsLostBetweenUseAndRest) {
  constexpr int kIdle = 10;  // ms
  Sides sides(plan_of(milliseconds(kIdle)), plan_of(milliseconds(kIdle)));
  std::mt19937 random(16);
  int rested = 0;
  for (int i = 0; i != scaled(300, 100); ++i) {
    sides.any(random() % 5, random());
    if (::testing::Test::HasFailure()) FAIL() << "at step " << i;
    std::this_thread::sleep_for(milliseconds(random() % (2 * kIdle)));  // what is tested
    rested += sides.rests() ? 1 : 0;
  }
  EXPECT_GT(rested, 0);
}

TEST(Idle, APeerThatDiesAtRestIsGone) {
  Sides sides(plan_of(milliseconds(50)), plan_of(milliseconds(50)));
  ASSERT_TRUE(eventually([&] { return sides.rests(); }));
  sides.peer.process().kill_now();
  const Status written = sides.connection.write(sides.own->span(0, kSize), sides.target).wait(kLimit);
  EXPECT_TRUE(is_error(written, {ErrorCode::kPeerGone, ErrorCode::kUnavailable}));
  EXPECT_TRUE(is_error(sides.connection.status(), {ErrorCode::kPeerGone}));
}

// A stopped peer takes nothing for longer than the idle time: that is no rest.
TEST(Idle, WhatWaitsForASlowPeerIsNotClosed) {
  constexpr std::uint64_t kLarge = 64 << 20;
  constexpr milliseconds kRest{3000};
  Sides sides(plan_of(kRest), plan_of(kRest));
  OwnRegion large(sides.endpoint, kLarge);
  const PeerRegion theirs = sides.peer.region(kLarge);
  const auto id = sides.connection.import_region(theirs.descriptor);
  ASSERT_TRUE(is_ok(status_of(id)));
  fill(large.pages.bytes(), 3);
  sides.write(1);  // its streams are open
  sides.peer.process().stop();
  const Transfer write =
      sides.connection.write(large.span(0, kLarge), {*id, theirs.descriptor.address, kLarge});
  EXPECT_TRUE(is_error(write.wait(2 * kRest), {ErrorCode::kTimedOut}));
  EXPECT_FALSE(sides.rests());
  sides.peer.process().signal(SIGCONT);
  EXPECT_TRUE(is_ok(write.wait(kLimit)));
  EXPECT_TRUE(is_ok(status_of(sides.peer.call(fmt::format("check {} 0 {} 3", theirs.index, kLarge)))));
}

}  // namespace
}  // namespace p2p::testing::idle
