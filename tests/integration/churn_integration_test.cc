// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>

#include "support/peer.h"

namespace p2p::testing::churn {
namespace {

using std::chrono::microseconds;

constexpr long kMiB = 1 << 20;

/// A few files and, under a sanitizer, its quarantine; what leaks once a connection is far more.
constexpr long kMoreFiles = 8;
constexpr long kMoreThreads = 0;
constexpr long kMoreBytes = (kSanitized ? 300 : 12) * kMiB;

void expect_flat(const char* who, const Usage& before, const Usage& after) {
  EXPECT_LE(after.open_files, before.open_files + kMoreFiles) << who;
  EXPECT_LE(after.threads, before.threads + kMoreThreads) << who;
  EXPECT_LE(after.resident_bytes, before.resident_bytes + kMoreBytes) << who;
}

void connect_and_close(Peer& peer, Endpoint& endpoint, int times, bool accept) {
  for (int i = 0; i < times; ++i) {
    const auto connection = endpoint.connect(peer.address(), peer.port(), kLimit);
    ASSERT_TRUE(is_ok(status_of(connection))) << "connection " << i;
    if (accept) {
      ASSERT_TRUE(is_ok(status_of(peer.call("accept_drop 20000"))));
    }
    ASSERT_TRUE(is_ok(connection->close(kLimit))) << "connection " << i;
  }
}

/// Closing ends at the peer a moment later than here.
void wait_for_none(Peer& peer) {
  const auto deadline = std::chrono::steady_clock::now() + kLimit;
  while (peer.number("connections") != 0 && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(peer.number("connections"), 0u);
}

void test_churn(int times, bool accept) {
  Peer peer({});
  Endpoint endpoint = make_endpoint({});
  connect_and_close(peer, endpoint, times / 10, accept);
  wait_for_none(peer);
  const Usage here = usage_of(::getpid());
  const Usage there = usage_of(peer.process().pid());
  connect_and_close(peer, endpoint, times, accept);
  wait_for_none(peer);
  expect_flat("connector", here, usage_of(::getpid()));
  expect_flat("acceptor", there, usage_of(peer.process().pid()));
}

TEST(Churn, ConnectsAndClosesLeaveNothingBehind) { test_churn(scaled(10'000, 500), true); }

TEST(Churn, NorDoThoseThatNobodyAccepts) { test_churn(scaled(2'000, 200), false); }

TEST(Churn, RegistrationsLeaveNothingBehind) {
  Pair pair({});
  Pages pages(4096);
  const auto cycle = [&](int times) {
    for (int i = 0; i < times; ++i) {
      const auto region = pair.endpoint.register_memory(pages.data(), pages.size());
      ASSERT_TRUE(is_ok(status_of(region)));
    }
  };
  cycle(1000);
  const Usage before = usage_of(::getpid());
  cycle(scaled(100'000, 10'000));
  expect_flat("owner", before, usage_of(::getpid()));
}

microseconds own_time() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto of = [](const timeval& time) {
    return std::chrono::seconds(time.tv_sec) + microseconds(time.tv_usec);
  };
  return of(usage.ru_utime) + of(usage.ru_stime);
}

/// From /proc/PID/stat, in ticks of 10 ms.
microseconds time_of(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string word;
  while (file >> word && !word.ends_with(')')) {
  }
  constexpr int kBeforeTimes = 11;  // words between the name and utime
  for (int i = 0; i < kBeforeTimes; ++i) file >> word;
  long user = 0;
  long system = 0;
  file >> user >> system;
  return microseconds((user + system) * 1'000'000 / ::sysconf(_SC_CLK_TCK));
}

TEST(Idle, ConnectedEndpointsUseNoTime) {
  EndpointPlan plan;
  plan.keepalive = std::chrono::seconds(3);
  Pair pair(plan);
  OwnRegion own(pair.endpoint, 4096);
  const PeerRegion theirs = pair.peer.region(4096);
  const auto id = pair.connection.import_region(theirs.descriptor);
  ASSERT_TRUE(is_ok(status_of(id)));
  ASSERT_TRUE(
      is_ok(pair.connection.write(own.span(0, 4096), {*id, theirs.descriptor.address, 4096}).wait(kLimit)));
  const Transfer pending = pair.connection.recv(own.span(0, 4096));  // waiting costs nothing either
  constexpr std::chrono::seconds kSpan{2};
  constexpr microseconds kAllowed = microseconds(kSpan) / 50;
  microseconds used_here = kAllowed;
  microseconds used_there = kAllowed;
  // What connecting leaves to do may take more than the first span on a busy machine.
  for (int round = 0; round != 4 && (used_here >= kAllowed || used_there >= kAllowed); ++round) {
    const microseconds here = own_time();
    const microseconds there = time_of(pair.peer.process().pid());
    std::this_thread::sleep_for(kSpan);
    used_here = own_time() - here;
    used_there = time_of(pair.peer.process().pid()) - there;
  }
  EXPECT_LT(used_here, kAllowed);
  EXPECT_LT(used_there, kAllowed);
  EXPECT_FALSE(pending.done());
}

}  // namespace
}  // namespace p2p::testing::churn
