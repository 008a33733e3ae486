// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// The queue pairs of a connection are lost for good, in the middle of all kinds of work, and `tcp` carries
// on. Skipped where there are no devices; scripts/test_rdma.sh runs it where there are two, of
// scripts/rdma_vm.sh.
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "support/eventually.h"
#include "support/sides.h"
#include "support/taken.h"
#include "support/traffic.h"

namespace p2p::testing::rdma_detour {
namespace {

using namespace std::chrono_literals;

void set_links(const char* state) {
  for (const int link : {0, 1}) {
    EXPECT_TRUE(is_ok(run({"ip", "link", "set", fmt::format("cable{}", link), state})));
  }
}

/// As scripts/rdma_vm.sh does.
void make_devices() {
  for (const int link : {0, 1}) {
    const auto name = [&](const char* kind) { return fmt::format("{}{}", kind, link); };
    const std::vector<std::vector<std::string>> steps{
        {"ip", "link", "add", name("cable"), "mtu", "9000", "type", "veth", "peer", "name", name("far"),
         "mtu", "9000"},
        {"ip", "addr", "add", fmt::format("10.97.{}.1/24", link), "dev", name("cable")},
        {"ip", "link", "set", name("cable"), "up"},
        {"ip", "link", "set", name("far"), "up"},
        {"rdma", "link", "add", name("rxe"), "type", "rxe", "netdev", name("cable")}};
    for (const auto& step : steps) EXPECT_TRUE(is_ok(run(step)));
  }
}

/// This process's descriptors of devices.
std::vector<int> open_devices() {
  std::vector<int> devices;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (!gone && target.starts_with("/dev/infiniband/uverbs"))
      devices.push_back(std::stoi(entry.path().filename()));
  }
  return devices;
}

/// The queue pairs of this process fail as soon as they are made, until the end.
class BrokenPairs {
 public:
  BrokenPairs() : breaking_([this](const std::stop_token& stop) { fail_all(stop); }) {}

  /// How often one failed.
  unsigned failed() const { return failed_; }

 private:
  // More than a process of a test has things with a number at one device.
  static constexpr std::uint32_t kMostHandles = 64;

  void fail_all(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      for (const int opened : open_devices()) {
        const auto device = static_cast<int>(::syscall(SYS_dup, opened));
        for (std::uint32_t handle = 0; handle != kMostHandles; ++handle) failed_ += fail(device, handle);
        ::syscall(SYS_close, device);
      }
    }
  }

  // Whatever has this number, if it is a queue pair that can fail.
  static bool fail(int device, std::uint32_t handle) {
    // As linux/include/uapi/rdma/ib_user_verbs.h has it.
    struct {
      std::uint32_t command = 26;  // IB_USER_VERBS_CMD_MODIFY_QP
      std::uint16_t words_in = sizeof *this / sizeof(std::uint32_t);
      std::uint16_t words_out = 0;
      std::array<std::uint32_t, 16> addresses{};
      std::uint32_t handle = 0;
      std::uint32_t changed = 1;  // IB_QP_STATE
      std::array<std::uint32_t, 6> rest{};
      std::uint8_t state = 6;  // IB_QPS_ERR
      std::array<std::uint8_t, 15> more{};
    } command;
    command.handle = handle;
    return ::write(device, &command, sizeof command) == ssize_t{sizeof command};
  }

  std::atomic<unsigned> failed_{0};
  std::jthread breaking_;
};

class RdmaDetourTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!run({"ip", "link", "show", "cable1"})) GTEST_SKIP() << "needs the links of scripts/rdma_vm.sh";
  }

  void TearDown() override { EXPECT_TRUE(open_devices().empty()); }

  static EndpointPlan plan() {
    EndpointPlan plan;
    plan.transport = "rdma,tcp";
    plan.keepalive = 4s;  // emulated machines are slow: nobody is to be taken for dead because of that
    plan.workers = kSharingWorkers;
    return plan;
  }

  /// By who dialled in one round, and by who was dialled in the next one.
  static void join(Sides& sides, unsigned round) {
    round % 2 == 0 ? sides.join() : sides.be_joined();
    ASSERT_EQ(transport(sides), "rdma");
  }

  static std::string transport(const Sides& sides) { return sides.connection.routes().front().transport; }

  /// At least two rounds, and more until a fault has met what was under way.
  static bool another(unsigned round, std::uint64_t retried) {
    constexpr unsigned kMostRounds = 8;
    return !HasFailure() && (round <= 2 || (retried == 0 && round <= kMostRounds));
  }

  /// All of everything, with the fault somewhere in it; what is there already, and what is started
  /// afterwards. How many batches the fault has met.
  template <class Fault>
  static std::uint64_t expect_nothing_fails(Sides& sides, unsigned seed, Fault&& fault) {
    sides.write(seed);
    Traffic traffic(sides, 1000 * seed);
    std::mt19937 random(seed);
    const auto after = std::chrono::microseconds(random() % 300'000);
    auto trouble = std::async(std::launch::async, [&] {
      std::this_thread::sleep_for(after);  // the moment of the fault
      fault();
    });
    const auto until = std::chrono::steady_clock::now() + 600ms;
    const auto over = [&] { return trouble.wait_for(0s) == std::future_status::ready; };
    while (std::chrono::steady_clock::now() < until || !over()) traffic.start_all();
    trouble.get();
    traffic.expect_all_done();
    EXPECT_TRUE(eventually([&] { return transport(sides) == "tcp"; }));
    for (unsigned which = 0; which != Sides::kOperations; ++which) sides.any(which, 400 + which);
    EXPECT_EQ(sides.connection.stats().transfers_failed, 0U);
    EXPECT_TRUE(is_ok(sides.connection.status()));
    return sides.connection.stats().batches_retried;
  }
};

// The system lets a device go only once nobody has it open any more, but its ports are gone at once.
TEST_F(RdmaDetourTest, DevicesGo) {
  std::uint64_t retried = 0;
  for (unsigned round = 1; another(round, retried); ++round) {
    SCOPED_TRACE(round);
    {
      Sides sides(plan());
      join(sides, round);
      retried += expect_nothing_fails(sides, round, [] {
        EXPECT_TRUE(
            is_ok(run({"sh", "-c", "for i in 0 1; do ip link delete cable$i >/dev/null 2>&1 & done"})));
      });
    }
    EXPECT_TRUE(eventually([] {
      return !std::filesystem::exists("/sys/class/infiniband/rxe0") &&
             !std::filesystem::exists("/sys/class/infiniband/rxe1");
    }));
    make_devices();
  }
  EXPECT_GT(retried, 0U);
}

// Messages and notifications, too, and what the peer asks for: each with a fault in its middle.
TEST_F(RdmaDetourTest, NothingFailsWhateverIsUnderWay) {
  std::mt19937 random(1);
  for (unsigned seed = 1; seed <= Sides::kOperations && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    Sides sides(plan());
    join(sides, seed);
    sides.write(seed);
    const bool pairs = seed % 4 < 2;
    std::optional<BrokenPairs> broken;
    const auto after = std::chrono::microseconds(random() % 200'000);
    auto trouble = std::async(std::launch::async, [&] {
      std::this_thread::sleep_for(after);  // the moment of the fault
      pairs ? static_cast<void>(broken.emplace()) : set_links("down");
    });
    sides.any(seed, 100 + seed);
    trouble.get();
    for (unsigned which = 0; which != Sides::kOperations; ++which) sides.any(which, 300 + which);
    EXPECT_TRUE(eventually([&] { return transport(sides) == "tcp"; }));
    EXPECT_EQ(sides.connection.stats().transfers_failed, 0U);
    EXPECT_TRUE(is_ok(sides.connection.status()));
    if (!pairs) set_links("up");
  }
}

TEST_F(RdmaDetourTest, NothingLandsInWhatIsTakenBackMeanwhile) {
  std::mt19937 random(4);
  for (unsigned round = 0; round != 4 && !HasFailure(); ++round) {
    SCOPED_TRACE(round);
    Sides sides(plan());
    join(sides, round / 2);
    Taken taken(sides);
    for (int i = 0; i != 8; ++i) taken.start();
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 100'000));  // the moment of the fault
    set_links("down");
    std::this_thread::sleep_for(
        std::chrono::microseconds(random() % 4'000'000));  // the moment of the next one
    const bool there = round % 2 == 0;
    there ? taken.take_back_there() : taken.take_back_here();
    taken.expect_untouched(there);
    EXPECT_TRUE(is_ok(sides.connection.status()));
    set_links("up");
  }
}

TEST_F(RdmaDetourTest, PortsGoDown) {
  std::uint64_t retried = 0;
  for (unsigned round = 1; another(round, retried); ++round) {
    SCOPED_TRACE(round);
    Sides sides(plan());
    join(sides, round);
    retried += expect_nothing_fails(sides, round, [] { set_links("down"); });
    set_links("up");
  }
  EXPECT_GT(retried, 0U);
}

TEST_F(RdmaDetourTest, QueuePairsFail) {
  std::uint64_t retried = 0;
  for (unsigned round = 1; another(round, retried); ++round) {
    SCOPED_TRACE(round);
    Sides sides(plan());
    join(sides, round);
    std::optional<BrokenPairs> broken;
    retried += expect_nothing_fails(sides, round, [&] { broken.emplace(); });
    EXPECT_GT(broken->failed(), 0U);
  }
  EXPECT_GT(retried, 0U);
}

}  // namespace
}  // namespace p2p::testing::rdma_detour
