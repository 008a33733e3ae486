// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "p2p/log.h"
#include "support/command.h"
#include "support/peer.h"
#include "support/transports.h"

// A child of the process that made an endpoint has its memory and its descriptors, and none of its threads.
namespace p2p::testing::fork {
namespace {

constexpr std::size_t kSize = 100'000;

class ForkTest : public OverTransport {};
P2P_OVER_TRANSPORTS(ForkTest);

bool refused(const Status& status) {
  return !status && status.error().code == ErrorCode::kUnavailable &&
         status.error().message.find("forked") != std::string::npos;
}

TEST_P(ForkTest, AChildIsToldAndHarmsNothing) {
#if defined(P2P_TSAN)
  // It does not lock its allocator at a fork (before LLVM 19), which another thread may be in, and forbids
  // threads in the child.
  GTEST_SKIP() << "the thread sanitizer makes no promise to the child of a process with threads";
#endif
  std::optional<Pair> pair(std::in_place, EndpointPlan{.transport = GetParam()});
  std::optional<OwnRegion> own(std::in_place, pair->endpoint, kSize);
  const PeerRegion theirs = pair->peer.region(kSize);
  const auto id = pair->connection.import_region(theirs.descriptor);
  ASSERT_TRUE(is_ok(status_of(id)));
  const RemoteSpan to{*id, theirs.descriptor.address, kSize};
  const auto write = [&] { return pair->connection.write(own->span(0, kSize), to).wait(kLimit); };
  ASSERT_TRUE(is_ok(write()));
  const ProcessEnd end = in_child([&] {
    int wrong = 0;
    const auto expect = [&wrong](bool right) { wrong += right ? 0 : 1; };
    expect(refused(write()));
    expect(refused(pair->connection.send(own->span(0, 8)).wait(kLimit)));
    expect(refused(pair->connection.recv(own->span(0, 8)).wait(kLimit)));
    expect(refused(pair->connection.notify("from the child").wait(kLimit)));
    expect(refused(status_of(pair->connection.import_region(theirs.descriptor))));
    expect(refused(pair->connection.wait_imported(*id, kLimit)));
    expect(refused(status_of(pair->connection.explain(own->region.id(), *id))));
    expect(refused(status_of(pair->connection.prepare_write(std::array{own->span(0, 8)}, std::array{to}))));
    expect(pair->connection.routes().empty() && pair->connection.take_notifications().empty() &&
           pair->connection.stats().transfers_started == 0 && pair->endpoint.connections().empty() &&
           pair->endpoint.stats().transfers_started == 0 && pair->endpoint.latencies().empty());
    expect(refused(pair->connection.close(kLimit)));
    expect(refused(own->region.release(kLimit)));
    expect(refused(status_of(pair->endpoint.register_memory(own->pages.data(), kSize))));
    expect(refused(status_of(pair->endpoint.accept(kLimit))));
    expect(refused(status_of(pair->endpoint.connect("127.0.0.1", pair->peer.port(), kLimit))));
    own->region = MemoryRegion();
    pair->connection = Connection();
    expect(refused(status_of(Endpoint::create(EndpointPlan{.transport = GetParam()}.options()))));
    return wrong;
  });
  EXPECT_EQ(end, ProcessEnd{.code = 0});
  EXPECT_TRUE(is_ok(write())) << "the parent's goes on";
  EXPECT_TRUE(is_ok(pair->connection.notify("from the parent").wait(kLimit)));
}

/// None listens there now.
std::uint16_t free_port() {
  const Endpoint endpoint = make_endpoint({});
  return endpoint.port();
}

using Descriptors = std::set<int>;

/// Those of this process, in a child too: by calls that take no locks.
Descriptors open_descriptors() {
  Descriptors open;
  const int most = 4096;
  for (int fd = 0; fd != most; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) open.insert(fd);
  }
  return open;
}

/// What the C library has open for a moment while it is asked for interfaces or reads of the system's files.
bool is_a_lookup(int fd, std::string_view name) {
  int domain = 0;
  socklen_t size = sizeof domain;
  const bool is_socket = ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0;
  return name.starts_with("/proc/") || name.starts_with("/sys/") || (is_socket && domain == AF_NETLINK);
}

/// Without a thread's room for copies (base/safe_copy.h): the engine's for as long as the thread lives,
/// whatever endpoints there are. An earlier test may have left the main thread's.
Descriptors without_rooms(Descriptors open) {
  std::erase_if(open, [](int fd) {
    std::error_code ignored;
    const auto name = std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", fd), ignored);
    return name.string().find("p2p-copies") != std::string::npos;
  });
  return open;
}

/// The child is to have these but for the engine's, and no others. It names those that it has besides.
bool child_has(const Descriptors& parents) {
  const Descriptors expected = without_rooms(parents);
  return in_child([&] {
           int wrong = 0;
           for (int fd = 0; fd != 4096; ++fd) {
             const bool has = ::fcntl(fd, F_GETFD) >= 0;
             if (has == expected.contains(fd)) continue;
             std::array<char, 128> name{};
             std::array<char, 64> link{};
             std::snprintf(link.data(), link.size(), "/proc/self/fd/%d", fd);
             if (::readlink(link.data(), name.data(), name.size() - 1) < 0) name = {"unnamed"};
             if (is_a_lookup(fd, name.data())) continue;
             ++wrong;
             std::fprintf(stderr, "descriptor %d: %s (%s)\n", fd, has ? "kept" : "lost", name.data());
           }
           return wrong != 0;
         }).code == 0;
}

TEST_P(ForkTest, AChildHasNoneOfTheEnginesDescriptorsAndAllOthers) {
  const int others = ::eventfd(0, EFD_CLOEXEC);
  const Peer peer({.transport = GetParam()});
  static_cast<void>(
      make_endpoint({.transport = GetParam()}));  // CUDA, where it is, keeps descriptors of its own
  const Descriptors before = open_descriptors();
  {
    Endpoint endpoint = make_endpoint({.transport = GetParam()});
    ASSERT_TRUE(is_ok(status_of(endpoint.connect("127.0.0.1", peer.port(), kLimit))));
    ASSERT_GT(open_descriptors().size(), before.size());
    EXPECT_TRUE(child_has(before));
  }
  EXPECT_EQ(open_descriptors(), before);
  ::close(others);
}

TEST_P(ForkTest, WhatTheParentClosedIsFreeWhileAChildLives) {
  EndpointPlan plan{.transport = GetParam(), .port = free_port()};
  Options options = plan.options();
  options.metrics = "127.0.0.1:" + std::to_string(free_port());
  options.trace = ::testing::TempDir() + "fork_trace_" + std::to_string(::getpid());
  std::optional<Endpoint> endpoint(Endpoint::create(options).value());
  auto child = Process::forked([](const Process::Say& say) {
    say("its handlers have run");
    return ::pause();
  });
  ASSERT_TRUE(child && child->read_line(kLimit));
  endpoint.reset();
  std::vector<std::string> log;
  set_log_sink([&](LogLevel, std::string_view line) { log.emplace_back(line); });
  EXPECT_TRUE(is_ok(status_of(Endpoint::create(options))));
  set_log_sink(nullptr);
  EXPECT_TRUE(log.empty()) << log.front();  // another process's lock on the trace is a warning
  std::filesystem::remove(options.trace);
}

TEST_P(ForkTest, NoneIsMissedWhileTheyComeAndGo) {
#if defined(P2P_TSAN)
  GTEST_SKIP() << "the thread sanitizer makes no promise to the child of a process with threads";
#endif
  const Peer peer({.transport = GetParam()});
  static_cast<void>(make_endpoint({.transport = GetParam()}));  // as above
  const Descriptors before = open_descriptors();
  std::atomic<bool> stop{false};
  std::atomic<int> connected{0};
  std::thread churn([&] {
    Endpoint endpoint = make_endpoint({.transport = GetParam(), .workers = 1});
    while (!stop) {
      if (endpoint.connect("127.0.0.1", peer.port(), kLimit)) ++connected;
    }
  });
  while (connected == 0) std::this_thread::yield();
  bool right = true;
  for (int i = 0; i != 300 && right; ++i) right = child_has(before);
  stop = true;
  churn.join();
  EXPECT_TRUE(right);
}

// A process with an endpoint has a child for other reasons, and is killed.
TEST_P(ForkTest, AParentsDeathIsKnownAtOnce) {
  auto parent = Process::forked([](const Process::Say& say) {
    const Endpoint owner = make_endpoint({.transport = GetParam()});
    const auto child = Process::forked([] {
      ::prctl(PR_SET_PDEATHSIG, 0);
      ::alarm(60);
      return ::pause();
    });
    say(fmt::format("{} {}", owner.port(), child->pid()));
    return ::pause();
  });
  ASSERT_TRUE(parent);
  const auto said = parent->read_line(kLimit);
  ASSERT_TRUE(is_ok(status_of(said)));
  Words words(*said);
  const auto port = static_cast<std::uint16_t>(words.number());
  const auto child = static_cast<pid_t>(words.number());
  Endpoint mine = make_endpoint({.transport = GetParam()});
  const auto connection = mine.connect("127.0.0.1", port, kLimit);
  ASSERT_TRUE(is_ok(status_of(connection)));
  std::array<std::byte, 64> room{};
  const MemoryRegion region = mine.register_memory(room.data(), room.size()).value();
  const Transfer receive = connection->recv(region.span());
  parent->kill_now();
  const Status status = receive.wait(std::chrono::seconds(10));  // a third of `hung`
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kPeerGone) << status.error().message;
  ::kill(child, SIGKILL);
}

}  // namespace
}  // namespace p2p::testing::fork
