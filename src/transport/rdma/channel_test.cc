// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// A channel over the provider without hardware: windows, doorbells, and what happens when something fails.
#include "transport/rdma/channel.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <random>

#include "drivers/verbs/testing/fake_provider.h"
#include "transport/rdma/channel_pair.h"

namespace p2p::rdma {
namespace {

using testing::ChannelPair;
using testing::Clock;
using testing::kPatience;
using testing::Side;
using verbs::testing::Failure;
using verbs::testing::FakeProvider;

constexpr auto ready = ChannelPair::ready;
constexpr auto failed = ChannelPair::failed;

class RdmaChannelTest : public ::testing::Test {
 protected:
  void connect() { pair_.connect(); }
  bool serve_until(const std::function<bool()>& condition) { return pair_.serve_until(condition); }
  void serve(Side& side, Side& other) { pair_.serve(side, other); }
  bool post(Side& side, std::uint64_t id, const std::vector<Segment>& segments,
            Operation operation = Operation::kWrite) {
    return pair_.post(side, id, segments, operation);
  }
  Segment segment(Side& side, std::size_t local, std::size_t remote, std::size_t size) {
    return pair_.segment(side, local, remote, size);
  }

  /// Blocks of 256 bytes in an order of their own on each side.
  std::vector<Segment> shuffled(std::size_t count, unsigned seed) {
    std::vector<std::size_t> order(count);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::shuffle(order, std::mt19937(seed));
    std::vector<Segment> segments;
    for (std::size_t i = 0; i < count; ++i) segments.push_back(segment(left_, order[i] * 512, i * 512, 256));
    return segments;
  }

  /// Long enough that nothing is given up because this thread had to wait.
  explicit RdmaChannelTest(std::chrono::milliseconds keepalive = std::chrono::minutes(1))
      : options_(options(keepalive)) {}

  const Options options_;
  FakeProvider provider_{{.devices = 2, .requests = 200}};
  ChannelPair pair_{options_, &provider_.library()};
  Side& left_ = pair_.left;
  Side& right_ = pair_.right;

 private:
  static Options options(std::chrono::milliseconds keepalive) {
    Options options;
    options.keepalive = keepalive;
    return options;
  }
};

/// What ends by time.
class RdmaTimeTest : public RdmaChannelTest {
 protected:
  RdmaTimeTest() : RdmaChannelTest(std::chrono::milliseconds(4000)) {}
};

TEST_F(RdmaChannelTest, SaysWhatItRunsOver) {
  connect();
  const std::string text = left_.channel->describe();
  EXPECT_EQ(text, "fake0:1 RoCE v2 10.0.0.1 -> 10.0.0.1, 100 Gb/s, MTU 4096, NUMA distance unknown");
}

TEST_F(RdmaChannelTest, ScatteredBytesArriveBothWays) {
  connect();
  const auto segments = shuffled(1000, 1);
  ASSERT_TRUE(post(left_, 1, segments));
  ASSERT_TRUE(serve_until([&] { return left_.ended.contains(1); }));
  ASSERT_TRUE(left_.ended[1]) << left_.ended[1].error().message;
  const auto same = [&](const Segment& each) {
    return std::equal(each.local, each.local + each.size, reinterpret_cast<const std::byte*>(each.remote));
  };
  EXPECT_TRUE(std::ranges::all_of(segments, same));
  std::ranges::fill(left_.memory, std::byte{});
  ASSERT_TRUE(post(left_, 2, segments, Operation::kRead));
  ASSERT_TRUE(serve_until([&] { return left_.ended.contains(2); }));
  EXPECT_TRUE(left_.ended[2]);
  EXPECT_TRUE(std::ranges::all_of(segments, same));
}

TEST_F(RdmaChannelTest, ManyRequestsADoorbell) {
  connect();
  const auto before = provider_.counts();
  constexpr unsigned kDescriptors = 40'960;
  const auto segments = shuffled(1024, 7);
  std::uint64_t posted = 0;
  ASSERT_TRUE(serve_until([&] {
    while (posted < kDescriptors / 1024 && post(left_, posted, segments)) ++posted;
    return left_.ended.size() == kDescriptors / 1024;
  }));
  const auto after = provider_.counts();
  EXPECT_EQ(after.requests - before.requests, kDescriptors);
  EXPECT_LE(after.doorbells - before.doorbells, kDescriptors / 32);
  EXPECT_LE(after.completing - before.completing, kDescriptors / 32);
}

TEST_F(RdmaChannelTest, WindowIsNeverOverrun) {
  connect();
  provider_.hold();
  const auto segments = shuffled(150, 3);
  std::uint64_t posted = 0;
  while (posted < 1000 && post(left_, posted, segments)) ++posted;
  EXPECT_GT(posted, 1U);
  EXPECT_LT(posted, 1000U) << "nothing bounds what a channel takes";
  EXPECT_LT(provider_.counts().most_outstanding, 200U);
  EXPECT_GE(provider_.counts().most_outstanding, 190U);
  for (int i = 0; i < 100; ++i) {
    provider_.step(7);
    serve(left_, right_);
  }
  provider_.release();
  ASSERT_TRUE(serve_until([&] { return left_.ended.size() == posted; }));
  for (const auto& [id, status] : left_.ended) EXPECT_TRUE(status) << id;
  EXPECT_FALSE(provider_.counts().overrun);
  EXPECT_LE(provider_.counts().most_outstanding, 200U);
}

TEST_F(RdmaChannelTest, BatchesWithoutBytesEnd) {
  connect();
  ASSERT_TRUE(post(left_, 1, {}));
  ASSERT_TRUE(post(left_, 2, {segment(left_, 0, 0, 0)}));
  ASSERT_TRUE(serve_until([&] { return left_.ended.size() == 2; }));
}

TEST_F(RdmaChannelTest, RangePastTheEndIsRefusedHere) {
  connect();
  const auto before = provider_.counts().requests;
  const std::size_t size = right_.memory.size();
  ASSERT_TRUE(post(left_, 1, {segment(left_, 0, size - 10, 11)}));
  ASSERT_TRUE(serve_until([&] { return left_.ended.contains(1); }));
  ASSERT_FALSE(left_.ended[1]);
  EXPECT_EQ(left_.ended[1].error().code, ErrorCode::kOutOfRange);
  EXPECT_EQ(provider_.counts().requests, before);
}

TEST_F(RdmaChannelTest, WrongKeyFailsItsBatchAndTheConnectionIsRebuilt) {
  connect();
  provider_.hold();
  const std::vector good{segment(left_, 0, 0, 1000)};
  const std::vector later{segment(left_, 4096, 4096, 1000)};
  Bytes forged = right_.registration->export_key();
  forged[1] ^= std::byte{0x70};
  const auto wrong_key = left_.transport.import_region(right_.registration->info(), forged).value();
  std::vector wrong{segment(left_, 2000, 2000, 1000)};
  wrong[0].key = wrong_key.get();
  const std::vector theirs{segment(right_, 9000, 9000, 500)};
  ASSERT_TRUE(post(left_, 1, good));
  ASSERT_TRUE(post(left_, 2, wrong));
  ASSERT_TRUE(post(left_, 3, later));
  ASSERT_TRUE(post(right_, 4, theirs, Operation::kRead));
  provider_.step(2);
  provider_.release();
  ASSERT_TRUE(serve_until([&] { return left_.ended.size() == 3 && right_.ended.size() == 1; }));
  EXPECT_TRUE(left_.ended[1]);
  ASSERT_FALSE(left_.ended[2]);
  EXPECT_EQ(left_.ended[2].error().code, ErrorCode::kPermissionDenied);
  for (const char* part : {"fake0:1", "-> 10.0.0.1"}) {
    EXPECT_NE(left_.ended[2].error().message.find(part), std::string::npos) << left_.ended[2].error().message;
  }
  EXPECT_TRUE(left_.ended[3]) << left_.ended[3].error().message;
  EXPECT_TRUE(right_.ended[4]) << right_.ended[4].error().message;
  EXPECT_TRUE(ready(left_) && ready(right_));
  EXPECT_EQ(provider_.counts().queue_pairs, 4U);
  EXPECT_TRUE(
      std::equal(left_.memory.begin() + 4096, left_.memory.begin() + 5096, right_.memory.begin() + 4096));
  EXPECT_EQ(right_.memory[2500], std::byte{});
}

// Posted past every engine: the owner's NIC refuses.
TEST_F(RdmaChannelTest, ReadOnlyMemoryIsReadAndNotWritten) {
  right_.region_options.read_only = true;
  connect();
  std::ranges::fill(right_.memory, std::byte{5});
  ASSERT_TRUE(post(left_, 1, {segment(left_, 0, 0, 4096)}, Operation::kRead));
  ASSERT_TRUE(serve_until([&] { return left_.ended.contains(1); }));
  ASSERT_TRUE(left_.ended[1]) << left_.ended[1].error().message;
  EXPECT_EQ(left_.memory[4095], std::byte{5});
  std::ranges::fill(left_.memory, std::byte{6});
  ASSERT_TRUE(post(left_, 2, {segment(left_, 0, 0, 4096)}));
  ASSERT_TRUE(serve_until([&] { return left_.ended.contains(2); }));
  EXPECT_FALSE(left_.ended[2]);
  EXPECT_TRUE(std::ranges::all_of(right_.memory, [](std::byte each) { return each == std::byte{5}; }));
}

TEST_F(RdmaChannelTest, KeyAfterDeregistrationIsDead) {
  connect();
  right_.transport.revoke_memory(*right_.registration);
  right_.registration.reset();
  ASSERT_TRUE(post(left_, 1, {segment(left_, 0, 0, 100)}));
  ASSERT_TRUE(serve_until([&] { return left_.ended.contains(1); }));
  ASSERT_FALSE(left_.ended[1]);
  EXPECT_EQ(left_.ended[1].error().code, ErrorCode::kPermissionDenied);
  EXPECT_EQ(right_.memory[50], std::byte{});
}

TEST_F(RdmaChannelTest, LocalFaultFailsItsBatchAlone) {
  connect();
  provider_.fail_after(1, Failure::kLocalFault);
  for (std::uint64_t id = 1; id <= 3; ++id) {
    const std::vector one{segment(left_, id * 1000, id * 1000, 100)};
    bool posted = false;
    ASSERT_TRUE(serve_until([&] {
      posted = posted || post(left_, id, one);
      return left_.ended.contains(id);
    }));
  }
  EXPECT_TRUE(left_.ended[1]);
  ASSERT_FALSE(left_.ended[2]);
  EXPECT_EQ(left_.ended[2].error().code, ErrorCode::kSystem);
  EXPECT_TRUE(left_.ended[3]);
}

TEST_F(RdmaChannelTest, SilentPeerLosesTheChannelForBoth) {
  connect();
  provider_.fail_after(0, Failure::kRetryExceeded);
  ASSERT_TRUE(post(left_, 1, {segment(left_, 0, 0, 100)}));
  serve(left_, right_);
  serve(left_, right_);
  EXPECT_TRUE(left_.ended.empty()) << "the peer's queue pair is still there";
  ASSERT_TRUE(serve_until([&] { return failed(left_) && failed(right_); }));
  ASSERT_FALSE(left_.ended[1]);
  EXPECT_EQ(left_.ended[1].error().code, ErrorCode::kPeerGone);
  EXPECT_EQ(right_.channel->error().code, ErrorCode::kPeerGone);
  EXPECT_NE(left_.channel->error().message.find("retry counter"), std::string::npos)
      << left_.channel->error().message;
}

TEST_F(RdmaTimeTest, WithoutThePeersWordItEndsInTime) {
  connect();
  provider_.fail_after(0, Failure::kRetryExceeded);
  ASSERT_TRUE(post(left_, 1, {segment(left_, 0, 0, 100)}));
  Side nobody(options_, &provider_.library());
  const auto deadline = Clock::now() + kPatience;
  while (!failed(left_) && Clock::now() < deadline) serve(left_, nobody);
  ASSERT_TRUE(failed(left_));
  EXPECT_EQ(left_.ended[1].error().code, ErrorCode::kPeerGone);
}

TEST_F(RdmaTimeTest, IdleChannelAsksWhetherThePeerIsThere) {
  connect();
  provider_.fail_after(0, Failure::kRetryExceeded);
  ASSERT_TRUE(serve_until([&] { return failed(left_) || failed(right_); }));
}

TEST_F(RdmaTimeTest, TellsOfThePeersHostByWhatItsNicDoes) {
  constexpr std::chrono::milliseconds kShort{300};  // less than between two probes
  connect();
  EXPECT_TRUE(left_.channel->heard_within(kPatience) && right_.channel->heard_within(kPatience));
  const auto heard = [&] { return left_.channel->heard_within(kShort); };
  ASSERT_TRUE(serve_until([&] { return !heard(); }));
  ASSERT_TRUE(serve_until(heard)) << "of an idle one by its probes";
  provider_.hold();
  ASSERT_TRUE(serve_until([&] { return !heard(); }));
  ASSERT_TRUE(post(left_, 1, {segment(left_, 0, 0, 100)}));
  serve(left_, right_);
  EXPECT_FALSE(heard()) << "of what its own NIC took";
  provider_.release();
  ASSERT_TRUE(serve_until([&] { return left_.ended.contains(1); }));
  ASSERT_TRUE(serve_until(heard));
}

TEST_F(RdmaChannelTest, ClosedPeerIsNoticedAtOnce) {
  connect();
  right_.channel.reset();
  serve(left_, right_);
  ASSERT_TRUE(failed(left_));
  EXPECT_EQ(left_.channel->error().code, ErrorCode::kPeerGone);
}

TEST_F(RdmaChannelTest, BrokenDeviceLosesTheChannel) {
  connect();
  provider_.hold();
  ASSERT_TRUE(post(left_, 1, {segment(left_, 0, 0, 100)}));
  provider_.break_device(1);  // another one
  provider_.break_device(0);
  ASSERT_TRUE(serve_until([&] { return failed(left_) && failed(right_); }));
  ASSERT_FALSE(left_.ended[1]);
  EXPECT_EQ(left_.ended[1].error().code, ErrorCode::kPeerGone);
  provider_.release();
}

TEST_F(RdmaTimeTest, PortThatStaysDownLosesTheChannel) {
  connect();
  provider_.set_port(0, false);
  ASSERT_TRUE(serve_until([&] { return failed(left_) && failed(right_); }));
  EXPECT_NE((left_.channel->error().message + right_.channel->error().message).find("went down"),
            std::string::npos);
}

TEST_F(RdmaTimeTest, PortThatComesBackDoesNot) {
  connect();
  provider_.set_port(0, false);
  serve(left_, right_);
  provider_.set_port(0, true);
  const auto until = Clock::now() + options_.keepalive / 4 + std::chrono::milliseconds(200);
  ASSERT_TRUE(serve_until([&] { return Clock::now() > until; }));
  EXPECT_TRUE(ready(left_) && ready(right_));
}

TEST_F(RdmaChannelTest, AbandonedBeforeItWasPosted) {
  connect();
  provider_.hold();
  const auto segments = shuffled(150, 3);
  for (std::uint64_t id = 1; id <= 4; ++id) ASSERT_TRUE(post(left_, id, segments));
  left_.channel->abandon(BatchId{4});  // none of it was posted
  serve(left_, right_);
  ASSERT_TRUE(left_.ended.contains(4));
  EXPECT_EQ(left_.ended[4].error().code, ErrorCode::kCancelled);
  left_.channel->abandon(BatchId{2});  // some of it was
  provider_.release();
  ASSERT_TRUE(serve_until([&] { return left_.ended.size() == 4; }));
  EXPECT_TRUE(left_.ended[1] && left_.ended[3]);
  EXPECT_EQ(left_.ended[2].error().code, ErrorCode::kCancelled);
}

TEST_F(RdmaChannelTest, SleepsUntilSomethingCompletes) {
  connect();
  provider_.hold();
  ASSERT_TRUE(post(left_, 1, {segment(left_, 0, 0, 100)}));
  EXPECT_TRUE(left_.channel->busy());
  ASSERT_TRUE(serve_until([&] { return !left_.channel->busy(); }));
  pollfd fd{.fd = left_.channel->ready_fd(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&fd, 1, 0), 0);
  provider_.release();
  EXPECT_EQ(::poll(&fd, 1, 0), 1);
  ASSERT_TRUE(serve_until([&] { return left_.ended.contains(1); }));
}

TEST_F(RdmaChannelTest, GpuMemoryAtThePeerIsFlushedByARead) {
  connect();
  RegionInfo info = right_.registration->info();
  info.place = {MemoryKind::kCuda, 0};
  left_.key = left_.transport.import_region(info, right_.registration->export_key()).value();
  const auto before = provider_.counts().requests;
  const std::vector one{segment(left_, 0, 0, 100)};
  ASSERT_TRUE(post(left_, 1, one));
  ASSERT_TRUE(post(left_, 2, one, Operation::kRead));
  ASSERT_TRUE(serve_until([&] { return left_.ended.size() == 2; }));
  EXPECT_TRUE(left_.ended[1] && left_.ended[2]);
  EXPECT_EQ(provider_.counts().requests - before, 3U);
}

TEST_F(RdmaChannelTest, StrangersAndWrongTimesAreRefused) {
  ASSERT_TRUE(left_.open(Role::kConnector));
  ASSERT_TRUE(right_.open(Role::kAcceptor));
  EXPECT_FALSE(left_.channel->connect(left_.channel->address())) << "its own";
  ASSERT_TRUE(left_.channel->connect(right_.channel->address()));
  EXPECT_FALSE(left_.channel->connect(right_.channel->address())) << "twice";
  EXPECT_FALSE(left_.channel->on_control(Bytes{std::byte{9}}));
  EXPECT_FALSE(left_.channel->on_control({}));
  Bytes early{std::byte{1}};
  const Bytes address = right_.channel->address();
  early.insert(early.end(), address.begin(), address.end());
  EXPECT_FALSE(left_.channel->on_control(early)) << "no repair is due";
}

}  // namespace
}  // namespace p2p::rdma
