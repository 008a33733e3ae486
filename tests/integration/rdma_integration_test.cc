// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Two processes over RDMA, and what happens to them when links go down, peers die and keys are wrong. Skipped
// where there are no devices; scripts/test_rdma.sh runs it where there are two, made by scripts/rdma_vm.sh.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <csignal>
#include <fstream>
#include <optional>

#include "support/hex.h"
#include "support/peer.h"

namespace p2p::testing::rdma {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kSize = 2 * kMiB;
constexpr std::initializer_list<ErrorCode> kRefused{ErrorCode::kNotFound, ErrorCode::kPermissionDenied,
                                                    ErrorCode::kOutOfRange};

/// Emulated machines are slow: nobody may be taken for dead because of that.
constexpr std::chrono::milliseconds kKeepalive{6000};
constexpr std::chrono::seconds kPatience{120};

class RdmaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const EndpointPlan plan{.transport = "rdma", .keepalive = kKeepalive};
    for (const auto& [name, reason] : make_endpoint({}).transports()) {
      if (name == "rdma" && !reason.empty()) GTEST_SKIP() << reason;
    }
    pair.emplace(plan);
    own.emplace(pair->endpoint, kSize);
    theirs = pair->peer.region(kSize);
    id = pair->connection.import_region(theirs.descriptor).value();
    fill(own->pages.bytes(), 1);
  }

  Transfer write(std::size_t offset = 0, std::size_t size = kSize) {
    return pair->connection.write(own->span(offset, size), {id, theirs.descriptor.address + offset, size});
  }

  void expect_written() {
    EXPECT_TRUE(is_ok(status_of(pair->peer.call(fmt::format("check {} 0 {} 1", theirs.index, kSize)))));
  }

  /// After one that has ended.
  std::vector<Transfer> start_writes(int count) {
    EXPECT_TRUE(is_ok(write().wait(kPatience)));
    std::vector<Transfer> writes;
    for (int i = 0; i < count; ++i) writes.push_back(write());
    EXPECT_TRUE(is_ok(writes.front().wait(kPatience)));
    return writes;
  }

  Route route() const { return pair->connection.routes().front(); }

  static void set_link(int number, const char* state) {
    ASSERT_TRUE(is_ok(run({"ip", "link", "set", fmt::format("cable{}", number), state})));
  }

  std::optional<Pair> pair;
  std::optional<OwnRegion> own;
  PeerRegion theirs;
  RemoteRegionId id{};
};

/// The same with the links of scripts/rdma_vm.sh, which are put up again at the end.
class RdmaLinkTest : public RdmaTest {
 protected:
  void SetUp() override {
    if (!run({"ip", "link", "show", "cable1"})) GTEST_SKIP() << "needs the links of scripts/rdma_vm.sh";
    RdmaTest::SetUp();
  }
  void TearDown() override {
    if (!pair) return;
    for (const int link : {0, 1}) set_link(link, "up");
  }

  /// What the kernel says of a device's port: a number in one of its files.
  template <class Number>
  static Number read_port(int device, const char* file) {
    Number number{};
    std::ifstream(fmt::format("/sys/class/infiniband/rxe{}/ports/1/{}", device, file)) >> number;
    return number;
  }

  static double gigabits_of(int device) { return read_port<double>(device, "rate"); }
  static std::uint64_t packets_of(int device) {
    return read_port<std::uint64_t>(device, "hw_counters/sent_pkts");
  }
};

TEST_F(RdmaTest, ADeviceThatIsNotThereMakesNoEndpoint) {
  Options options;
  options.listen_address = "127.0.0.1";
  options.transports = {"rdma"};
  options.rdma.devices = {"no_such_device"};
  const auto endpoint = Endpoint::create(options);
  ASSERT_TRUE(is_error(status_of(endpoint), {ErrorCode::kUnavailable}));
  EXPECT_THAT(endpoint.error().message, HasSubstr("no_such_device"));
}

TEST_F(RdmaTest, BothSidesMoveTwoSidedAndOneSided) {
  Peer& peer = pair->peer;
  EXPECT_EQ(route().transport, "rdma");
  const std::uint64_t receive =
      peer.number(fmt::format("recv {} {} 0 {}", pair->at_peer, theirs.index, kSize));
  EXPECT_TRUE(is_ok(pair->connection.send(own->span(0, kSize)).wait(kPatience)));
  EXPECT_TRUE(is_ok(peer.wait(receive, kPatience)));
  expect_written();
  const auto here = peer.call(fmt::format("import {} {}", pair->at_peer, to_hex(own->region.descriptor())));
  ASSERT_TRUE(is_ok(status_of(here)));
  peer.number(fmt::format("fill {} 0 {} 2", theirs.index, kSize));
  const std::uint64_t written =
      peer.number(fmt::format("write {} {} 0 {} {} {}", pair->at_peer, theirs.index, kSize, *here,
                              reinterpret_cast<std::uintptr_t>(own->pages.data())));
  EXPECT_TRUE(is_ok(peer.wait(written, kPatience)));
  EXPECT_EQ(difference(own->part(0, kSize), 2), std::nullopt);
}

TEST_F(RdmaTest, ANotificationComesAfterTheBytes) {
  PostOptions options;
  options.notification = "written";
  const Transfer written =
      pair->connection.write(own->span(0, kSize), {id, theirs.descriptor.address, kSize}, options);
  const auto notified = pair->peer.call(fmt::format("notified {} {}", pair->at_peer, kPatience / 1ms));
  ASSERT_TRUE(is_ok(status_of(notified)));
  EXPECT_THAT(*notified, HasSubstr("written"));
  expect_written();
  EXPECT_TRUE(is_ok(written.wait(kPatience)));
}

TEST_F(RdmaTest, KilledPeerFailsAllInTime) {
  auto writes = start_writes(400);  // far more than are through before the kill is
  pair->peer.process().signal(SIGKILL);
  const auto start = Clock::now();
  EXPECT_TRUE(is_error(writes.back().wait(kPatience), {ErrorCode::kPeerGone}));
  EXPECT_LT(Clock::now() - start, kKeepalive + 2 * kMargin);
  for (const Transfer& each : writes) EXPECT_FALSE(is_error(each.wait(kLimit), {ErrorCode::kTimedOut}));
}

TEST_F(RdmaTest, ForgedKeyIsRefusedAndHarmsNothing) {
  RegionDescriptor forged = theirs.descriptor;
  forged.key[3] ^= std::byte{1};
  const auto other = pair->connection.import_region(forged);
  if (other) {
    const RemoteSpan to{*other, forged.address, 100};
    EXPECT_TRUE(is_error(pair->connection.write(own->span(0, 100), to).wait(kPatience), kRefused));
  }
  EXPECT_TRUE(is_ok(status_of(pair->peer.call(fmt::format("check_clear {} 0 {}", theirs.index, kSize)))));
  EXPECT_TRUE(is_ok(write().wait(kPatience))) << "the connection must be unharmed";
}

TEST_F(RdmaTest, RangePastTheEndIsRefused) {
  const RemoteSpan to{id, theirs.descriptor.address + kSize - 50, 100};
  EXPECT_TRUE(is_error(pair->connection.write(own->span(0, 100), to).wait(kPatience), kRefused));
  EXPECT_TRUE(is_ok(write().wait(kPatience)));
}

TEST_F(RdmaTest, DeregisteredWhileItIsWritten) {
  const auto writes = start_writes(8);
  pair->peer.number(fmt::format("drop_region {}", theirs.index));
  pair->peer.number(fmt::format("clear {} 0 {}", theirs.index, kSize));
  for (const Transfer& each : writes) {
    const Status done = each.wait(kPatience);
    if (!done) {
      EXPECT_TRUE(is_error(done, kRefused));
    }
  }
  EXPECT_TRUE(is_ok(status_of(pair->peer.call(fmt::format("check_clear {} 0 {}", theirs.index, kSize)))));
  EXPECT_TRUE(is_error(write().wait(kPatience), kRefused));
  EXPECT_TRUE(is_ok(pair->connection.status()));
}

TEST_F(RdmaLinkTest, TheRouteTellsEveryDevice) {
  const std::string numa = ", NUMA distance unknown";  // of a device without hardware
  std::string expected = "4 channels";
  for (const int i : {0, 1}) {
    expected += fmt::format("{} rxe{}:1 RoCE v2 10.97.{}.1 -> 10.97.{}.1, {:g} Gb/s, MTU 4096{}",
                            i == 0 ? ":" : ";", i, i, i, gigabits_of(i), numa);
  }
  EXPECT_EQ(route().transport, "rdma");
  EXPECT_EQ(route().detail, expected);
}

TEST_F(RdmaLinkTest, TransfersAreDealtOverBothDevices) {
  constexpr std::uint64_t kEnough = 4 * kMiB / 4096;  // packets
  const std::array before{packets_of(0), packets_of(1)};
  const auto dealt = [&] {
    return packets_of(0) - before[0] >= kEnough && packets_of(1) - before[1] >= kEnough;
  };
  const auto deadline = Clock::now() + kPatience;
  while (!dealt() && Clock::now() < deadline) {
    for (const Transfer& each : start_writes(8)) ASSERT_TRUE(is_ok(each.wait(kPatience)));
  }
  EXPECT_TRUE(dealt());
}

TEST_F(RdmaLinkTest, OneOfTwoLinksGoesDownAndTheTransfersSucceed) {
  ASSERT_THAT(route().detail, HasSubstr("4 channels"));
  auto writes = start_writes(30);
  set_link(0, "down");
  // Until a batch was on the link that is gone, and went over the other one.
  const auto deadline = Clock::now() + kPatience;
  while (pair->connection.stats().batches_retried == 0 && Clock::now() < deadline) {
    writes.push_back(write());
    EXPECT_TRUE(is_ok(writes.back().wait(kPatience)));
  }
  for (const Transfer& each : writes) EXPECT_TRUE(is_ok(each.wait(kPatience)));
  EXPECT_GT(pair->connection.stats().batches_retried, 0U);
  EXPECT_GT(pair->connection.stats().channels_lost, 0U);
  expect_written();
  EXPECT_TRUE(is_ok(write().wait(kPatience))) << "over the other link";
  while (route().detail.find("rxe0") != std::string::npos && Clock::now() < deadline) {
    EXPECT_TRUE(is_ok(write().wait(kPatience)));
  }
  EXPECT_THAT(route().detail, AllOf(HasSubstr("2 of 4 channels: rxe1:1"), Not(HasSubstr("rxe0"))));
}

TEST_F(RdmaLinkTest, BothLinksDownFailInTime) {
  const auto writes = start_writes(300);  // more than can end meanwhile
  set_link(0, "down");
  set_link(1, "down");
  const auto start = Clock::now();
  EXPECT_TRUE(is_error(writes.back().wait(kPatience), {ErrorCode::kPeerGone}));
  // Half of it until they are known as lost, and a quarter more than all of it to open them again.
  EXPECT_LT(Clock::now() - start, 2 * kKeepalive + 2 * kMargin);
}

// Transfers wait meanwhile, and are dealt over both again.
TEST_F(RdmaLinkTest, LinksThatComeBackCarryAgain) {
  ASSERT_THAT(route().detail, HasSubstr("4 channels:"));
  for (const bool both : {false, true}) {
    SCOPED_TRACE(both ? "both" : "one");
    const std::uint64_t lost_before = pair->connection.stats().channels_lost;
    auto writes = start_writes(30);
    set_link(0, "down");
    if (both) set_link(1, "down");
    const auto deadline = Clock::now() + kPatience;
    const std::uint64_t going = both ? 4 : 2;
    while (pair->connection.stats().channels_lost < lost_before + going && Clock::now() < deadline) {
    }
    for (const int link : {0, 1}) set_link(link, "up");
    writes.push_back(write());
    for (const Transfer& each : writes) EXPECT_TRUE(is_ok(each.wait(kPatience)));
    expect_written();
    while (!route().detail.starts_with("4 channels:") && Clock::now() < deadline) {
    }
    EXPECT_THAT(route().detail, AllOf(HasSubstr("4 channels:"), HasSubstr("rxe0"), HasSubstr("rxe1")));
    EXPECT_TRUE(is_ok(write().wait(kPatience)));
  }
}

}  // namespace
}  // namespace p2p::testing::rdma
