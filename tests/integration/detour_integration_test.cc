// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// The best transport of a connection is lost for good, at any moment, and the next one carries on.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <random>
#include <thread>
#include <vector>

#include "support/eventually.h"
#include "support/sides.h"
#include "support/taken.h"

namespace p2p::testing::detour {
namespace {

using namespace std::chrono_literals;

/// Closes at the end.
struct Descriptor {
  explicit Descriptor(long opened) : number(static_cast<int>(opened)) {}
  ~Descriptor() {
    if (number >= 0) ::close(number);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int option(int name) const {
    int value = -1;
    socklen_t size = sizeof value;
    return ::getsockopt(number, SOL_SOCKET, name, &value, &size) == 0 ? value : -1;
  }

  const int number;
};

// Ends the sending half of the sockets that `cma` keeps between its channels, at a process, whose peer then
// takes them for closed. How many there were.
int shut_cma_of(pid_t pid) {
  const Descriptor process(::syscall(SYS_pidfd_open, pid, 0));
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(fmt::format("/proc/{}/fd", pid))) {
    const int number = std::stoi(entry.path().filename());
    const Descriptor fd(::syscall(SYS_pidfd_getfd, process.number, number, 0));
    const bool is_cma = fd.option(SO_DOMAIN) == AF_UNIX && fd.option(SO_TYPE) == SOCK_SEQPACKET &&
                        fd.option(SO_ACCEPTCONN) == 0;
    if (is_cma && ::shutdown(fd.number, SHUT_WR) == 0) ++count;
  }
  return count;
}

EndpointPlan all_transports() {
  EndpointPlan plan;
  plan.workers = kSharingWorkers;
  plan.keepalive = 20s;  // how loaded the machine is decides nothing
  return plan;
}

/// By who dialled, or by who was dialled.
class DetourTest : public ::testing::TestWithParam<bool> {
 protected:
  static pid_t who_gives_up(Sides& sides) {
    return GetParam() ? sides.peer.process().pid() : ::getpid();  // the other end of what is shut
  }

  /// Shuts `cma` after so long; how many sockets that were.
  static std::future<int> shut_after(Sides& sides, std::chrono::microseconds after) {
    return std::async(std::launch::async, [&sides, after] {
      std::this_thread::sleep_for(after);  // the moment of the fault
      return shut_cma_of(who_gives_up(sides));
    });
  }

  static bool is_over(const std::future<int>& trouble) {
    return trouble.wait_for(0s) == std::future_status::ready;
  }

  /// `cma` is lost for good. A channel that was on its way when the others were shut serves alone: it is shut
  /// too.
  static void expect_next(Sides& sides) {
    EXPECT_TRUE(eventually([&] {
      if (sides.connection.routes().front().transport == "tcp") return true;
      shut_cma_of(who_gives_up(sides));
      return false;
    }));
  }
};
INSTANTIATE_TEST_SUITE_P(By, DetourTest, ::testing::Values(true, false),
                         [](const auto& one) { return one.param ? "connector" : "acceptor"; });

TEST_P(DetourTest, NothingFailsWhateverIsUnderWay) {
  std::mt19937 random(GetParam() ? 1 : 2);
  for (unsigned seed = 1; seed <= 3 * Sides::kOperations; ++seed) {
    SCOPED_TRACE(seed);
    Sides sides(all_transports());
    sides.join();
    ASSERT_EQ(sides.connection.routes().front().transport, "cma");
    if (seed % 2 == 0) sides.write(seed);  // by then most channels have followed the first one
    auto trouble = shut_after(sides, std::chrono::microseconds(random() % 4000));
    std::uint64_t data = 100 * seed;
    do {
      sides.any(seed, ++data);
    } while (!is_over(trouble) && !HasFailure());
    EXPECT_GT(trouble.get(), 0);
    sides.any(seed, ++data);
    expect_next(sides);
    for (unsigned which = 0; which != Sides::kOperations; ++which) sides.any(which, ++data);
    EXPECT_EQ(sides.connection.stats().transfers_failed, 0U);
    EXPECT_TRUE(is_ok(sides.connection.status()));
    if (HasFailure()) return;
  }
}

// Many at once, in parts, so that the fault always meets some of them.
TEST_P(DetourTest, NothingFailsOfManyAtOnce) {
  constexpr std::uint64_t kPart = Sides::kSize / 8;
  std::mt19937 random(GetParam() ? 3 : 4);
  for (unsigned seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(seed);
    Sides sides(all_transports());
    sides.join();
    sides.write(seed);
    auto trouble = shut_after(sides, std::chrono::microseconds(random() % 20000));
    fill(sides.own.pages.bytes(), 100 + seed);
    std::vector<Transfer> transfers;
    const auto until = std::chrono::steady_clock::now() + 100ms;
    while (std::chrono::steady_clock::now() < until || !is_over(trouble)) {
      for (std::uint64_t part = 0; part != 8; ++part) {
        const RemoteSpan to{sides.target.region, sides.target.address + part * kPart, kPart};
        transfers.push_back(sides.connection.write(sides.own.span(part * kPart, kPart), to));
      }
      if (transfers.size() > 64) {
        EXPECT_TRUE(is_ok(transfers[transfers.size() - 65].wait(kLimit)));
      }
    }
    EXPECT_GT(trouble.get(), 0);
    for (const Transfer& transfer : transfers) EXPECT_TRUE(is_ok(transfer.wait(kLimit)));
    expect_next(sides);
    sides.write(200 + seed);
    sides.read(300 + seed);
    EXPECT_EQ(sides.connection.stats().transfers_failed, 0U);
    if (HasFailure()) return;
  }
}

TEST_P(DetourTest, NothingLandsInWhatIsTakenBackMeanwhile) {
  static std::mt19937 random(5);  // others when it is repeated
  for (unsigned round = 0; round != 8 && !HasFailure(); ++round) {
    SCOPED_TRACE(round);
    Sides sides(all_transports());
    sides.join();
    Taken taken(sides);
    auto trouble = shut_after(sides, std::chrono::microseconds(random() % 8000));
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(random() % 12000);
    unsigned started = 0;
    do {
      if (started++ < 16) taken.start();
    } while (std::chrono::steady_clock::now() < until);
    const bool there = round % 2 == 0;
    there ? taken.take_back_there() : taken.take_back_here();
    taken.expect_untouched(there);
    EXPECT_GT(trouble.get(), 0);
    EXPECT_TRUE(is_ok(sides.connection.status()));
  }
}

TransportBytes moved_by(const Sides& sides, const std::string& transport) {
  for (const TransportBytes& one : sides.connection.stats().by_transport) {
    if (one.transport == transport) return one;
  }
  return {};
}

// A list that was prepared for the transport of before begins there, and ends elsewhere.
TEST_P(DetourTest, WhatWentElsewhereIsCountedWhereItWent) {
  Sides sides(all_transports());
  sides.join();
  const std::vector<LocalSpan> here{sides.own.span(0, Sides::kSize)};
  const std::vector<RemoteSpan> there{sides.target};
  const auto prepared_write = sides.connection.prepare_write(here, there);
  const auto prepared_read = sides.connection.prepare_read(here, there);
  ASSERT_TRUE(is_ok(status_of(prepared_write)) && is_ok(status_of(prepared_read)));
  sides.write(1);
  EXPECT_EQ(moved_by(sides, "cma").written, Sides::kSize);
  EXPECT_GT(shut_after(sides, 0us).get(), 0);
  expect_next(sides);
  for (int i = 0; i != 2; ++i) EXPECT_TRUE(is_ok(prepared_write->post().wait(kLimit)));
  EXPECT_TRUE(is_ok(prepared_read->post().wait(kLimit)));
  EXPECT_EQ(moved_by(sides, "cma").written, Sides::kSize);
  EXPECT_EQ(moved_by(sides, "cma").read, 0U);
  EXPECT_EQ(moved_by(sides, "tcp").written, 2 * Sides::kSize);
  EXPECT_EQ(moved_by(sides, "tcp").read, Sides::kSize);
  std::uint64_t timed = 0;
  for (const Latency& row : sides.connection.latencies()) {
    for (const std::uint64_t count : row.counts) timed += row.transport == "tcp" ? count : 0;
  }
  EXPECT_EQ(timed, 3U) << "how long they took is told of it as well";
}

}  // namespace
}  // namespace p2p::testing::detour
