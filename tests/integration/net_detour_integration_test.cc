// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// The comms of a net plugin are lost for good, at any moment, and `tcp` carries on.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "support/eventually.h"
#include "support/sides.h"
#include "support/taken.h"
#include "support/traffic.h"

namespace p2p::testing {
namespace {

using namespace std::chrono_literals;

// To other ports this process does not connect; 0: to all.
std::atomic<std::uint16_t> only_port{0};

std::uint16_t port_of(const sockaddr* address) {
  if (address->sa_family == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in*>(address)->sin_port);
  if (address->sa_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6*>(address)->sin6_port);
  return 0;
}

// The ports at both ends of a TCP connection, or nothing.
std::vector<std::uint16_t> ports_of(int fd) {
  std::vector<std::uint16_t> ports;
  for (const auto name : {&::getpeername, &::getsockname}) {
    sockaddr_storage storage{};
    socklen_t size = sizeof storage;
    auto* const address = reinterpret_cast<sockaddr*>(&storage);
    if (name(fd, address, &size) != 0 || port_of(address) == 0) return {};
    ports.push_back(port_of(address));
  }
  return ports;
}

/// From here on the plugin of this process has no connections and gets none, until the end.
class Break {
 public:
  /// But for those of the session, at a port here or there, and of `tcp`, which uses the same.
  explicit Break(const Sides& sides) {
    only_port = sides.peer.port();
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      // Of its own, so that it stays what it is. By calls that ThreadSanitizer does not see: the plugin may
      // be closing its own, which is no fault here.
      const auto fd = static_cast<int>(::syscall(SYS_dup, std::stoi(entry.path().filename())));
      const auto ports = ports_of(fd);
      const bool is_comm = !ports.empty() && std::ranges::none_of(ports, [&](std::uint16_t port) {
        return port == sides.peer.port() || port == sides.endpoint.port();
      });
      if (is_comm && ::shutdown(fd, SHUT_RDWR) == 0) ++comms_;
      if (fd >= 0) ::syscall(SYS_close, fd);
    }
  }
  ~Break() {
    if (!moved_) only_port = 0;
  }
  Break(Break&& other) noexcept : comms_(other.comms_) { other.moved_ = true; }
  Break& operator=(Break&&) = delete;

  int comms() const { return comms_; }

 private:
  int comms_ = 0;
  bool moved_ = false;
};

class NetDetourTest : public ::testing::Test {
 protected:
  NetDetourTest() { ::setenv("SOFTNET_INTERFACES", "lo", 1); }

  static EndpointPlan plan() {
    EndpointPlan plan;
    plan.transport = "nccl_net,tcp";
    plan.plugin = P2P_SOFTNET;
    plan.workers = kSharingWorkers;
    return plan;
  }

  /// By who dialled in one round, and by who was dialled in the next one.
  static void join(Sides& sides, unsigned round) { round % 2 == 0 ? sides.join() : sides.be_joined(); }

  static std::string transport(const Sides& sides) { return sides.connection.routes().front().transport; }

  /// After so long.
  static std::future<Break> break_after(const Sides& sides, std::chrono::microseconds after) {
    return std::async(std::launch::async, [&sides, after] {
      std::this_thread::sleep_for(after);  // the moment of the fault
      return Break(sides);
    });
  }

  static bool is_over(const std::future<Break>& breaking) {
    return breaking.wait_for(0s) == std::future_status::ready;
  }

  static void expect_nothing_failed(const Sides& sides) {
    EXPECT_EQ(sides.connection.stats().transfers_failed, 0U);
    EXPECT_TRUE(is_ok(sides.connection.status()));
  }
};

TEST_F(NetDetourTest, NothingFailsWhateverIsUnderWay) {
  std::mt19937 random(1);
  for (unsigned seed = 1; seed <= Sides::kOperations && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    Sides sides(plan());
    join(sides, seed);
    ASSERT_EQ(transport(sides), "nccl_net");
    sides.write(seed);
    auto breaking = break_after(sides, std::chrono::microseconds(random() % 6000));
    std::uint64_t data = 100 * seed;
    do {
      sides.any(seed, ++data);
    } while (!is_over(breaking) && !HasFailure());
    const Break broken = breaking.get();
    EXPECT_GT(broken.comms(), 0);
    sides.write(++data);  // comms that nothing uses are not known to be lost
    EXPECT_TRUE(eventually([&] { return transport(sides) == "tcp"; }));
    for (unsigned which = 0; which != Sides::kOperations; ++which) sides.any(which, ++data);
    expect_nothing_failed(sides);
  }
}

TEST_F(NetDetourTest, NothingFailsOfManyAtOnce) {
  std::mt19937 random(2);
  std::uint64_t retried = 0;
  for (unsigned round = 1; round <= 4 && !HasFailure(); ++round) {
    SCOPED_TRACE(round);
    Sides sides(plan());
    join(sides, round);
    ASSERT_EQ(transport(sides), "nccl_net");
    sides.write(round);
    Traffic traffic(sides, 1000 * round);
    auto breaking = break_after(sides, std::chrono::microseconds(random() % 20000));
    const auto until = std::chrono::steady_clock::now() + 100ms;
    while (std::chrono::steady_clock::now() < until || !is_over(breaking)) traffic.start_all();
    const Break broken = breaking.get();
    EXPECT_GT(broken.comms(), 0);
    traffic.expect_all_done();
    sides.write(200 + round);  // comms that nothing uses are not known to be lost
    EXPECT_TRUE(eventually([&] { return transport(sides) == "tcp"; }));
    sides.read(300 + round);
    expect_nothing_failed(sides);
    retried += sides.connection.stats().batches_retried;
  }
  EXPECT_GT(retried, 0U) << "the fault met nothing that was under way";
}

TEST_F(NetDetourTest, NothingLandsInWhatIsTakenBackMeanwhile) {
  static std::mt19937 random(3);  // others when it is repeated
  for (unsigned round = 0; round != 8 && !HasFailure(); ++round) {
    SCOPED_TRACE(round);
    Sides sides(plan());
    join(sides, round / 2);
    ASSERT_EQ(transport(sides), "nccl_net");
    Taken taken(sides);
    auto breaking = break_after(sides, std::chrono::microseconds(random() % 8000));
    const auto now = std::chrono::steady_clock::now();
    const auto until = now + std::chrono::microseconds(random() % 12000);
    const bool there = round % 2 == 0;
    unsigned started = 0;
    do {
      if (started++ < 16) taken.start();
    } while (std::chrono::steady_clock::now() < until);
    there ? taken.take_back_there() : taken.take_back_here();
    taken.expect_untouched(there);
    breaking.wait();
    EXPECT_TRUE(is_ok(sides.connection.status()));
  }
}

}  // namespace

int connect_if_allowed(int fd, const sockaddr* address, socklen_t size) {
  const std::uint16_t port = port_of(address);
  const std::uint16_t only = only_port;
  if (only != 0 && port != 0 && port != only) {
    errno = ECONNREFUSED;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_connect, fd, address, size));
}

}  // namespace p2p::testing

// In place of the C library's, for the whole program and the plugin.
extern "C" __attribute__((visibility("default"))) int connect(int fd, const sockaddr* address,
                                                              socklen_t size) {
  return p2p::testing::connect_if_allowed(fd, address, size);
}
