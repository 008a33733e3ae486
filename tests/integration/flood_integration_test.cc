// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "support/eventually.h"
#include "support/peer.h"
#include "support/sockets.h"

namespace p2p::testing::flood {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// A peer that is taken for a stranger dials again and again, and may never come in; one that is not waits for
// its turn of a busy machine alone. docs/scale.md says what it takes on a quiet one.
constexpr milliseconds kAtOnce{kSanitized ? 30'000 : 15'000};

/// Strangers, in a process of their own.
class Flood {
 public:
  Flood(const Peer& peer, int held, int rate, const char* words)
      : process_(*Process::spawn({P2P_FLOOD_PROGRAM, peer.address(), std::to_string(peer.port()),
                                  std::to_string(held), std::to_string(rate), words})) {
    const auto line = process_.read_line(kLimit);
    EXPECT_EQ(line.value_or("nothing"), "ready");
  }

  std::uint64_t made() {
    EXPECT_TRUE(is_ok(process_.write_line("made")));
    const auto line = process_.read_line(kLimit);
    EXPECT_TRUE(line);
    return line ? std::stoull(*line) : 0;
  }

 private:
  Process process_;
};

class FloodTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(key_) << "the key that strangers lack\n";
    std::filesystem::permissions(key_, std::filesystem::perms::owner_read);
  }
  void TearDown() override { std::filesystem::remove(key_); }

  EndpointPlan plan() const { return {.transport = "tcp", .key_file = key_, .streams = 2}; }

  static std::uint64_t strangers_refused(Peer& peer) { return peer.number("refused"); }

  /// Data goes there and back.
  static void expect_moves(Endpoint& endpoint, Connection& connection, Peer& peer, unsigned seed) {
    constexpr std::size_t kSize = 1'000'000;
    OwnRegion own(endpoint, kSize);
    const PeerRegion theirs = peer.region(kSize);
    fill(own.pages.bytes(), seed);
    const auto id = connection.import_region(theirs.descriptor);
    ASSERT_TRUE(is_ok(status_of(id)));
    const RemoteSpan there{*id, theirs.descriptor.address, kSize};
    ASSERT_TRUE(is_ok(connection.write(own.span(0, kSize), there).wait(kLimit)));
    EXPECT_TRUE(is_ok(status_of(peer.call(fmt::format("check {} 0 {} {}", theirs.index, kSize, seed)))));
    set_all(own.pages.bytes(), std::byte{});
    ASSERT_TRUE(is_ok(connection.read(own.span(0, kSize), there).wait(kLimit)));
    EXPECT_FALSE(difference(own.pages.bytes(), seed));
  }

  /// Of writes over an open connection, in GB/s.
  static double speed(Endpoint& endpoint, Connection& connection, Peer& peer) {
    constexpr std::size_t kSize = std::size_t{4} << 20;
    constexpr int kTimes = scaled(100, 10);
    OwnRegion own(endpoint, kSize);
    const PeerRegion theirs = peer.region(kSize);
    const auto id = connection.import_region(theirs.descriptor);
    EXPECT_TRUE(is_ok(status_of(id)));
    if (!id) return 0;
    const RemoteSpan there{*id, theirs.descriptor.address, kSize};
    const auto start = Clock::now();
    for (int i = 0; i != kTimes; ++i) {
      EXPECT_TRUE(is_ok(connection.write(own.span(0, kSize), there).wait(kLimit)));
    }
    return kTimes * kSize / std::chrono::duration<double, std::nano>(Clock::now() - start).count();
  }

  const std::string key_ =
      (std::filesystem::temp_directory_path() / fmt::format("p2p-flood-key-{}", ::getpid())).string();
};

TEST_F(FloodTest, SilentConnectionsLeaveDescriptorsAndTheProcessor) {
  Peer peer(plan(), {"prlimit", "--nofile=256"});
  const std::uint64_t lines = peer.number("log_lines");
  Flood flood(peer, 400, 0, "silent");
  EXPECT_TRUE(eventually([&] { return strangers_refused(peer) > 100; }));
  const auto cpu = usage_of(peer.process().pid()).cpu_time;
  const auto start = Clock::now();
  std::this_thread::sleep_for(milliseconds(1500));  // what is measured
  const auto spent = usage_of(peer.process().pid()).cpu_time - cpu;
  const auto past = Clock::now() - start;
  EXPECT_LT(spent, past / 10);
  RecordProperty("cpu_percent",
                 static_cast<int>(100 * spent / std::chrono::duration_cast<milliseconds>(past)));
  EXPECT_TRUE(is_ok(status_of(peer.call("open_files 60")))) << "the application's own files";
  EXPECT_LE(peer.number("log_lines") - lines, 10U);
  Endpoint endpoint = make_endpoint(plan());
  auto connection = endpoint.connect(peer.address(), peer.port(), kLimit);
  ASSERT_TRUE(is_ok(status_of(connection)));
  peer.accept();
  expect_moves(endpoint, *connection, peer, 1);
}

TEST_F(FloodTest, TheApplicationsFilesAreNotTakenAndCallsGoOn) {
  Peer peer(plan(), {"prlimit", "--nofile=256"});
  Endpoint endpoint = make_endpoint(plan());
  auto connection = endpoint.connect(peer.address(), peer.port(), kLimit);
  ASSERT_TRUE(is_ok(status_of(connection)));
  peer.accept();
  constexpr int kTimes = scaled(1000, 100);  // it opens them while strangers come and go
  {
    Flood flood(peer, 400, 5000, "silent");
    expect_moves(endpoint, *connection, peer, 2);
    for (int i = 0; i != kTimes; ++i) EXPECT_TRUE(is_ok(status_of(peer.call("open_files 40"))));
  }
  const auto another = endpoint.connect(peer.address(), peer.port(), kLimit);
  EXPECT_TRUE(is_ok(status_of(another)));
}

// Part `large` (P2P_FLOOD_PEERS) has 3000.
TEST_F(FloodTest, RightPeersConnectBesideHalfOpenSessions) {
  const char* const many = std::getenv("P2P_FLOOD_PEERS");  // NOLINT(concurrency-mt-unsafe): no setenv here
  const EndpointPlan without_key{.transport = "tcp"};
  Peer peer(without_key);
  const unsigned held = many != nullptr ? static_cast<unsigned>(std::stoi(many)) : 300;
  Flood flood(peer, static_cast<int>(held), 0, "half");
  const unsigned kept = Options{}.max_strangers_of_address;
  EXPECT_TRUE(eventually([&] { return strangers_refused(peer) >= held - kept; })) << "all count as strangers";
  Endpoint endpoint = make_endpoint(without_key);
  for (int i = 0; i != 5; ++i) {
    EXPECT_TRUE(is_ok(status_of(endpoint.connect(peer.address(), peer.port(), kLimit)))) << i;
    peer.accept();
  }
}

class FloodRateTest : public FloodTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(FloodRateTest, ARightfulPeerConnectsAtOnce) {
  Peer peer(plan());
  Endpoint endpoint = make_endpoint(plan());
  auto open = endpoint.connect(peer.address(), peer.port(), kLimit);
  ASSERT_TRUE(is_ok(status_of(open)));
  peer.accept();
  const double alone = speed(endpoint, *open, peer);
  const int rate = scaled(10'000, 2000);
  Flood flood(peer, 1000, rate, GetParam());
  const double beside = speed(endpoint, *open, peer);
  RecordProperty("speed_kept_percent", static_cast<int>(100 * beside / alone));
  fmt::print("{}: {:.2f} GB/s alone, {:.2f} beside {} strangers a second\n", GetParam(), alone, beside, rate);
  milliseconds longest{0};
  const auto begin = Clock::now();
  const std::uint64_t before = flood.made();
  for (unsigned i = 0; i != 10; ++i) {
    const auto start = Clock::now();
    const auto connection = endpoint.connect(peer.address(), peer.port(), kLimit);
    ASSERT_TRUE(is_ok(status_of(connection)));
    longest = std::max(longest, std::chrono::duration_cast<milliseconds>(Clock::now() - start));
    peer.accept();
    expect_moves(endpoint, *open, peer, 10 + i);
    EXPECT_TRUE(is_ok(connection->close(kLimit)));
  }
  EXPECT_LT(longest, kAtOnce);
  const auto past = std::chrono::duration<double>(Clock::now() - begin).count();
  fmt::print("{}: connected within {} ms\n", GetParam(), longest.count());
  RecordProperty("longest_connect_ms", static_cast<int>(longest.count()));
  RecordProperty("strangers_per_second", static_cast<int>(static_cast<double>(flood.made() - before) / past));
  EXPECT_GT(strangers_refused(peer), 0U);
}

INSTANTIATE_TEST_SUITE_P(Strangers, FloodRateTest, ::testing::Values("silent", "hello", "noise"),
                         [](const auto& one) { return std::string(one.param); });

}  // namespace
}  // namespace p2p::testing::flood
