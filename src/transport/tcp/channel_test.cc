// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/channel.h"

#include <gmock/gmock.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "device/staging_pool.h"
#include "drivers/socket/round_trip.h"
#include "drivers/socket/socket.h"
#include "support/bounds.h"
#include "support/devices.h"
#include "transport/tcp/channel_pair.h"

namespace p2p::tcp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class ChannelTest : public ::testing::TestWithParam<bool>, protected ChannelPair {
 protected:
  explicit ChannelTest(const Options& options = {}) : ChannelPair(options) { encrypt_ = GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Streams, ChannelTest, ::testing::Bool(), name_of_encryption);

TEST_P(ChannelTest, WritesAndReadsOfManySizes) {
  ASSERT_TRUE(open());
  std::uint64_t id = 0;
  for (const std::size_t size : {std::size_t{1}, std::size_t{31}, std::size_t{4096}, std::size_t{8193},
                                 std::size_t{65536}, kMiB, kMiB + 1, 5 * kMiB + 7}) {
    Memory here = left_.memory(size, *right_.transport);
    Memory there = right_.memory(size, *left_.transport);
    here.fill(size);
    const std::vector<Segment> segments{whole(here, there)};
    ASSERT_TRUE(left_.channel->post(batch_of(++id, segments)));
    ASSERT_TRUE(outcome(left_, id)) << size;
    EXPECT_EQ(here.bytes, there.bytes) << size;

    there.fill(size + 1);
    ASSERT_TRUE(left_.channel->post(batch_of(++id, segments, Operation::kRead)));
    ASSERT_TRUE(outcome(left_, id)) << size;
    EXPECT_EQ(here.bytes, there.bytes) << size;
  }
}

// The congestion controls of all connected TCP sockets of this process.
std::vector<std::string> congestion_controls() {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename());
    if (!socket::peer_address(fd)) continue;
    if (std::string name = socket::congestion_control(fd); !name.empty()) found.push_back(std::move(name));
  }
  return found;
}

TEST_P(ChannelTest, StreamsOfOneHostAreNotPaced) {
  ASSERT_TRUE(open());
  const auto controls = congestion_controls();
  EXPECT_GE(controls.size(), 2U);
  EXPECT_THAT(controls, ::testing::Each("reno"));
}

TEST_P(ChannelTest, AtRestNothingIsHeardUntilItIsProbed) {
  ASSERT_TRUE(open());
  constexpr milliseconds kShort{50};
  for (int round = 0; round != 3; ++round) {
    ASSERT_TRUE(drive([&] { return !left_.channel->heard_within(kShort); }));
    left_.channel->probe();
    ASSERT_TRUE(drive([&] { return left_.channel->heard_within(kShort); }));
  }
  EXPECT_EQ(right_.channel->state(), ChannelState::kReady);
}

TEST_P(ChannelTest, WhatComesWhileItIsPolledWakesNobody) {
  ASSERT_TRUE(open());
  Memory here = left_.memory(kMiB, *right_.transport);
  Memory there = right_.memory(kMiB, *left_.transport);
  const std::vector<Segment> segments{whole(here, there)};
  pollfd ready{.fd = right_.channel->ready_fd(), .events = POLLIN, .revents = 0};
  for (std::uint64_t id = 1; id != 4; ++id) {
    here.fill(id);
    ASSERT_TRUE(right_.channel->enter_polling());
    ASSERT_TRUE(left_.channel->post(batch_of(id, segments)));
    while (left_.progress()) {
    }
    EXPECT_EQ(::poll(&ready, 1, 20), 0);
    EXPECT_TRUE(right_.channel->arm_events());
    EXPECT_EQ(::poll(&ready, 1, milliseconds(p2p::testing::kLimit).count()), 1);
    ASSERT_TRUE(outcome(left_, id));
    EXPECT_EQ(here.bytes, there.bytes);
    while (right_.progress()) {
    }
    EXPECT_EQ(::poll(&ready, 1, 0), 0) << "nothing is left";
  }
}

TEST_P(ChannelTest, EmptyBatchesComplete) {
  ASSERT_TRUE(open());
  ASSERT_TRUE(left_.channel->post(batch_of(1, {})));
  ASSERT_TRUE(left_.channel->post(batch_of(2, {}, Operation::kRead)));
  EXPECT_TRUE(outcome(left_, 1));
  EXPECT_TRUE(outcome(left_, 2));
}

TEST_P(ChannelTest, ScattersAndGathersManySegments) {
  ASSERT_TRUE(open());
  std::mt19937 random(4);
  std::uint64_t id = 0;
  for (const std::size_t count : {2U, 17U, 255U, 1023U, 1024U}) {
    for (const std::size_t size : {3U, 500U, 4096U}) {
      Memory here = left_.memory(2 * count * size, *right_.transport);
      Memory there = right_.memory(2 * count * size, *left_.transport);
      here.fill(count);
      std::vector<std::size_t> order(count);
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), random);
      std::vector<Segment> segments;
      for (std::size_t i = 0; i != count; ++i) {
        segments.push_back({here.bytes.data() + 2 * i * size, there.address() + 2 * order[i] * size, size,
                            here.registration.get(), there.key.get()});
      }
      ASSERT_TRUE(left_.channel->post(batch_of(++id, segments)));
      ASSERT_TRUE(outcome(left_, id));
      bool same = true;
      for (std::size_t i = 0; i != count; ++i) {
        same = same && std::equal(segments[i].local, segments[i].local + size,
                                  there.bytes.begin() + static_cast<std::ptrdiff_t>(2 * order[i] * size));
        const std::byte* gap = there.bytes.data() + (2 * order[i] + 1) * size;
        same = same && std::all_of(gap, gap + size, [](std::byte byte) { return byte == std::byte{0}; });
      }
      EXPECT_TRUE(same) << count << " x " << size;

      std::vector<std::byte> sent = here.bytes;
      for (const Segment& segment : segments) std::fill_n(segment.local, size, std::byte{0});
      ASSERT_TRUE(left_.channel->post(batch_of(++id, segments, Operation::kRead)));
      ASSERT_TRUE(outcome(left_, id));
      EXPECT_EQ(here.bytes, sent) << count << " x " << size;
    }
  }
}

TEST_P(ChannelTest, ClipsABatchAtBothEnds) {
  ASSERT_TRUE(open());
  Memory here = left_.memory(300, *right_.transport);
  Memory there = right_.memory(300, *left_.transport);
  here.fill(1);
  const std::vector<Segment> segments{
      {here.bytes.data(), there.address(), 100, here.registration.get(), there.key.get()},
      {here.bytes.data() + 150, there.address() + 150, 100, here.registration.get(), there.key.get()}};
  ASSERT_TRUE(left_.channel->post(
      {.id = BatchId{1}, .operation = Operation::kWrite, .segments = segments, .skip = 40, .bytes = 90}));
  ASSERT_TRUE(outcome(left_, 1));
  for (std::size_t i = 0; i != 300; ++i) {
    const bool moved = (i >= 40 && i < 100) || (i >= 150 && i < 180);
    EXPECT_EQ(there.bytes[i], moved ? here.bytes[i] : std::byte{0}) << i;
  }
}

TEST_P(ChannelTest, IsFullAtSomePointAndThenTakesMore) {
  ASSERT_TRUE(open());
  Memory here = left_.memory(kMiB, *right_.transport);
  Memory there = right_.memory(kMiB, *left_.transport);
  here.fill(8);
  const std::vector<Segment> segments{whole(here, there)};
  for (const Operation operation : {Operation::kWrite, Operation::kRead}) {
    left_.completions.clear();
    std::uint64_t posted = 0;
    while (posted != 1000 && left_.channel->post(batch_of(posted + 1, segments, operation))) ++posted;
    EXPECT_GT(posted, 1U);
    EXPECT_LT(posted, 100U);
    ASSERT_TRUE(outcome(left_, 1));
    EXPECT_TRUE(left_.channel->post(batch_of(posted + 1, segments, operation)));
    ASSERT_TRUE(drive([&] { return left_.completions.size() == posted + 1; }));
    for (const Completion& completion : left_.completions) EXPECT_TRUE(completion.status);
  }
}

// Each side on a thread of its own, writing and reading at once, sleeping on its descriptor in between.
class Load {
 public:
  Load(Side& side, Transport& peer, Side& other, std::size_t seed) : side_(side), seed_(seed) {
    for (std::size_t i = 0; i != kSlots; ++i) {
      local_.push_back(side.memory(kBytes, peer));
      remote_.push_back(other.memory(kBytes, *side.transport));
      (i % 2 == 0 ? local_ : remote_).back().fill(seed + i);
      segments_.push_back({});
      for (std::size_t at = 0; at < kBytes; at += 10'000) {
        segments_.back().push_back({local_[i].bytes.data() + at, remote_[i].address() + at,
                                    std::min<std::size_t>(9'000, kBytes - at), local_[i].registration.get(),
                                    remote_[i].key.get()});
      }
    }
  }

  // Goes on serving the peer until `all_done` counts two.
  void run(std::atomic<int>& all_done) {
    const auto deadline = Clock::now() + seconds(100);
    std::uint64_t posted = 0;
    while (all_done < 2 && Clock::now() < deadline) {
      while (posted < kBatches &&
             side_.channel->post(batch_of(posted, segments_[posted % kSlots],
                                          posted % 2 == 0 ? Operation::kWrite : Operation::kRead))) {
        ++posted;
      }
      if (!side_.progress()) side_.sleep();
      if (!counted_ && side_.completions.size() == kBatches) {
        counted_ = true;
        ++all_done;
      }
    }
  }

  void check() const {
    EXPECT_EQ(side_.completions.size(), kBatches);
    for (const Completion& completion : side_.completions) EXPECT_TRUE(completion.status);
    for (std::size_t i = 0; i != kSlots; ++i) {
      for (const Segment& segment : segments_[i]) {
        const auto* there = reinterpret_cast<const std::byte*>(segment.remote);
        ASSERT_TRUE(std::equal(segment.local, segment.local + segment.size, there)) << seed_ << " slot " << i;
      }
    }
  }

 private:
  static constexpr std::size_t kSlots = 6;
  static constexpr std::size_t kBytes = 700'001;
  static constexpr std::uint64_t kBatches = 300;

  Side& side_;
  std::size_t seed_;
  std::vector<Memory> local_;
  std::vector<Memory> remote_;
  std::vector<std::vector<Segment>> segments_;
  bool counted_ = false;
};

TEST_P(ChannelTest, BothSidesAtOnceOnTwoThreads) {
  ASSERT_TRUE(open());
  Load left(left_, *right_.transport, right_, 1);
  Load right(right_, *left_.transport, left_, 50);
  std::atomic<int> all_done{0};
  std::thread other([&] { right.run(all_done); });
  left.run(all_done);
  other.join();
  left.check();
  right.check();
}

class DeadlineTest : public ChannelTest {
 protected:
  static Options options() {
    Options made;
    made.connect_timeout = milliseconds(50);
    return made;
  }
  DeadlineTest() : ChannelTest(options()) {}
};
INSTANTIATE_TEST_SUITE_P(Streams, DeadlineTest, ::testing::Bool(), name_of_encryption);

TEST_P(DeadlineTest, NoPeerInTimeIsAnError) {
  right_.channel = *right_.transport->open_channel(setup(Role::kAcceptor));
  const auto deadline = Clock::now() + seconds(60);
  while (right_.channel->state() == ChannelState::kConnecting && Clock::now() < deadline) {
    right_.sleep();  // the descriptor announces the deadline
    right_.progress();
  }
  ASSERT_EQ(right_.channel->state(), ChannelState::kFailed);
  EXPECT_EQ(right_.channel->error().code, ErrorCode::kTimedOut);
}

TEST(TcpTransport, ChoosesRailsAndStreams) {
  Options options;
  options.interfaces = {"lo"};
  options.streams = 3;
  const auto transport = make(options, test_devices(options));
  ASSERT_TRUE(transport->probe());
  const std::vector<Rail> rails = transport->rails({"127.0.0.1", "127.0.0.1"});
  ASSERT_EQ(rails.size(), 1U);
  EXPECT_EQ(rails[0].name, "lo");
  EXPECT_EQ(rails[0].address, "127.0.0.1");
  EXPECT_EQ(transport->channels_per_rail(rails[0]), 3U);

  options.interfaces = {"no-such-interface"};
  options.streams = 0;
  const auto other = make(options, test_devices(options));
  const Status probe = other->probe();
  ASSERT_FALSE(probe);
  EXPECT_EQ(probe.error().code, ErrorCode::kUnavailable);
  EXPECT_GE(other->channels_per_rail({"lo", "127.0.0.1"}), 1U);
  EXPECT_LE(other->channels_per_rail({"lo", "127.0.0.1"}), 16U);
}

// What a device sends goes through a slot, and may be in it before the post has returned, if the thread stood
// still meanwhile. Nobody calls the channel again then: it has nothing under way that it does not announce.
TEST_P(ChannelTest, WhatIsInItsSlotAtOnceLeavesWithThePost) {
  ASSERT_TRUE(open());
  const auto pool = std::make_shared<device::StagingPool>(
      device::StagingPool::Limits{.slot_bytes = kMiB, .slots = 4},
      [](std::size_t bytes, int) -> Result<std::shared_ptr<std::byte>> {
        return std::shared_ptr<std::byte>(new std::byte[bytes], std::default_delete<std::byte[]>());
      });
  left_.channel =
      StreamChannel::open(setup(Role::kConnector),
                          {.registrations = std::make_shared<RegistrationTable>(), .staging = pool})
          .value();
  right_.channel = right_.transport->open_channel(setup(Role::kAcceptor)).value();
  ASSERT_TRUE(right_.channel->connect(left_.channel->address()));
  ASSERT_TRUE(left_.channel->connect(right_.channel->address()));
  ASSERT_TRUE(drive([&] {
    return left_.channel->state() == ChannelState::kReady && right_.channel->state() == ChannelState::kReady;
  }));
  Memory here = left_.memory(5, *right_.transport);
  Memory there = right_.memory(5, *left_.transport);
  here.fill(1);
  // Memory of no device that there is: it is copied on the spot.
  RegionInfo info = here.registration->info();
  info.place = {MemoryKind::kCuda, -1};
  const Registration of_device(info);
  const std::vector<Segment> segments{
      {here.bytes.data(), there.address(), here.bytes.size(), &of_device, there.key.get()}};
  ASSERT_TRUE(left_.channel->post(batch_of(1, segments)));
  EXPECT_FALSE(left_.channel->busy());
  const auto deadline = Clock::now() + seconds(10);
  while (there.bytes != here.bytes && Clock::now() < deadline) right_.progress();
  EXPECT_EQ(there.bytes, here.bytes);
  EXPECT_TRUE(outcome(left_, 1));
}

}  // namespace
}  // namespace p2p::tcp
