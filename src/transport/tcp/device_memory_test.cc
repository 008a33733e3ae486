// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Device memory over a stream, both ends in this process.

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "drivers/cuda/device.h"
#include "drivers/cuda/memory.h"
#include "support/memory.h"
#include "transport/tcp/channel_pair.h"
#include "transport/tcp/staging/staged_memory.h"

namespace p2p::tcp {
namespace {

TEST(StagedMemory, KnowsPlacesAndSize) {
  StagedMemory memory;
  std::byte bytes[3];
  memory.add(bytes, 1, {});
  memory.add(bytes + 1, 2, {MemoryKind::kCuda, 3});
  EXPECT_EQ(memory.bytes, 3u);
  ASSERT_EQ(memory.pieces.size(), 2u);
  EXPECT_EQ(memory.pieces[0].device, -1);
  EXPECT_EQ(memory.pieces[1].device, 3);
}

TEST(StagedMemory, TakesWhatTheBatchCoversOfEachPlace) {
  std::vector<std::byte> bytes(100);
  const Registration host({.base = bytes.data(), .size = 100});
  const Registration device({.base = bytes.data(), .size = 100, .place = {MemoryKind::kCuda, 1}});
  const RemoteKey here({.place = {}});
  const RemoteKey there({.place = {MemoryKind::kCuda, 0}});
  const std::vector<Segment> segments = {{bytes.data(), 0, 50, &host, &here},
                                         {bytes.data() + 50, 50, 50, &device, &here}};
  const StagedMemory memory = StagedMemory::of({.segments = segments, .skip = 10, .bytes = 60});
  ASSERT_EQ(memory.pieces.size(), 2u);
  EXPECT_EQ(memory.pieces[0].bytes, 40u);
  EXPECT_EQ(memory.pieces[1].bytes, 20u);
  EXPECT_EQ(memory.pieces[0].device, -1);
  EXPECT_EQ(memory.pieces[1].device, 1);
  EXPECT_FALSE(ends_on_device({.segments = segments, .bytes = 100}));
  const std::vector<Segment> over_there = {{bytes.data(), 0, 50, &host, &there}};
  EXPECT_TRUE(ends_on_device({.segments = over_there, .bytes = 50}));
}

TEST(StagedMemory, IsNotExpectedWhereCudaIpcServes) {
  ChannelSetup setup{.path = {.local_address = "10.0.0.1", .remote_address = "10.0.0.1"}};
  setup.transports = {"cma", "tcp"};
  EXPECT_TRUE(expects_to_stage(setup));
  setup.transports = {"cuda_ipc", "tcp"};
  EXPECT_FALSE(expects_to_stage(setup));
  setup.path.remote_address = "10.0.0.2";
  EXPECT_TRUE(expects_to_stage(setup));
}

/// Registered memory of one side on a device, in shuffled blocks.
struct DeviceMemory {
  cuda::DeviceBuffer buffer;
  std::shared_ptr<Registration> registration;
  std::unique_ptr<RemoteKey> key;

  std::vector<std::byte> content() const {
    std::vector<std::byte> bytes(buffer.size());
    EXPECT_TRUE(cuda::copy_now(bytes.data(), buffer.data(), bytes.size()));
    return bytes;
  }
  std::uint64_t address() const { return reinterpret_cast<std::uint64_t>(buffer.data()); }
};

std::vector<std::byte> pattern_bytes(std::size_t size, std::size_t seed) {
  std::vector<std::byte> bytes(size);
  testing::fill(bytes, seed);
  return bytes;
}

class TcpDeviceMemory : public ::testing::Test, protected ChannelPair {
 protected:
  static constexpr std::size_t kBytes = 24 * kMiB;

  void SetUp() override {
    if (const Status status = cuda::available(); !status) GTEST_SKIP() << status.error().message;
    ASSERT_TRUE(open());
    mine_ = memory(left_, right_, 0);
    theirs_ = memory(right_, left_, cuda::device_count() - 1);
    ASSERT_TRUE(cuda::copy_now(mine_.buffer.data(), pattern_bytes(kBytes, 1).data(), kBytes));
    ASSERT_TRUE(cuda::copy_now(theirs_.buffer.data(), pattern_bytes(kBytes, 2).data(), kBytes));
  }

  static DeviceMemory memory(Side& side, Side& peer, int device) {
    DeviceMemory made{.buffer = cuda::DeviceBuffer::allocate(device, kBytes).value()};
    RegionInfo info{.id = static_cast<RegionId>(++side.regions),
                    .base = made.buffer.data(),
                    .size = kBytes,
                    .place = {MemoryKind::kCuda, device}};
    info.key.fill(static_cast<std::byte>(side.regions));
    made.registration = *side.transport->register_memory(info);
    made.key = *peer.transport->import_region({.id = info.id, .key = info.key, .place = info.place}, {});
    return made;
  }

  /// Blocks of `size` bytes that lie apart here and over there, over there in another order.
  std::vector<Segment> blocks(std::size_t count, std::size_t size) const {
    std::vector<std::size_t> order(count);
    for (std::size_t i = 0; i != count; ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), std::mt19937(3));
    std::vector<Segment> all;
    for (std::size_t i = 0; i != count; ++i) {
      all.push_back({mine_.buffer.data() + i * (size + 1), theirs_.address() + order[i] * (size + 3), size,
                     mine_.registration.get(), theirs_.key.get()});
    }
    return all;
  }

  /// Posts `segments` in batches of at most a slot, all under way at once, and waits for them.
  void transfer(const std::vector<Segment>& segments, Operation operation) {
    std::uint64_t next = first_;
    std::size_t at = 0;
    std::vector<std::vector<Segment>> cut;
    while (at != segments.size()) {
      std::uint64_t bytes = 0;
      cut.emplace_back();
      while (at != segments.size() && cut.back().size() < kMaxRanges &&
             bytes + segments[at].size <= kStagedBytes) {
        bytes += segments[at].size;
        cut.back().push_back(segments[at++]);
      }
    }
    for (const auto& part : cut) {
      ASSERT_TRUE(drive([&] { return left_.channel->post(batch_of(next, part, operation)); }));
      ++next;
    }
    for (; first_ != next; ++first_) {
      const Status status = outcome(left_, first_);
      ASSERT_TRUE(status) << status.error().message;
    }
  }

  void expect(const std::vector<Segment>& segments, Operation operation) {
    std::vector<std::byte> here = pattern_bytes(kBytes, 1);
    std::vector<std::byte> there = pattern_bytes(kBytes, 2);
    for (const Segment& segment : segments) {
      std::byte* const local = here.data() + (segment.local - mine_.buffer.data());
      std::byte* const remote = there.data() + (segment.remote - theirs_.address());
      const bool write = operation == Operation::kWrite;
      std::memcpy(write ? remote : local, write ? local : remote, segment.size);
    }
    EXPECT_TRUE(mine_.content() == here);
    EXPECT_TRUE(theirs_.content() == there);
  }

  DeviceMemory mine_;
  DeviceMemory theirs_;
  std::uint64_t first_ = 1;
};

TEST_F(TcpDeviceMemory, WritesBlocks) {
  const auto segments = blocks(4000, 4096);
  transfer(segments, Operation::kWrite);
  expect(segments, Operation::kWrite);
}

TEST_F(TcpDeviceMemory, WritesLargeRuns) {
  const auto segments = blocks(20, kMiB - 7);
  transfer(segments, Operation::kWrite);
  expect(segments, Operation::kWrite);
}

TEST_F(TcpDeviceMemory, ReadsBlocks) {
  const auto segments = blocks(1000, 16384);
  transfer(segments, Operation::kRead);
  expect(segments, Operation::kRead);
}

TEST_F(TcpDeviceMemory, ReadsLargeRuns) {
  const auto segments = blocks(20, kMiB);
  transfer(segments, Operation::kRead);
  expect(segments, Operation::kRead);
}

TEST_F(TcpDeviceMemory, HostToDeviceAndBack) {
  Memory host = left_.memory(kMiB, *right_.transport);
  host.fill(9);
  const Segment out{host.bytes.data(), theirs_.address() + 5, kMiB, host.registration.get(),
                    theirs_.key.get()};
  transfer({out}, Operation::kWrite);
  const std::vector<std::byte> sent = host.bytes;
  EXPECT_EQ(std::memcmp(theirs_.content().data() + 5, sent.data(), kMiB), 0);
  host.fill(0);
  transfer({out}, Operation::kRead);
  EXPECT_TRUE(host.bytes == sent);
}

TEST_F(TcpDeviceMemory, HostAndDeviceInOneBatch) {
  Memory host = left_.memory(1000, *right_.transport);
  Memory far = right_.memory(1000, *left_.transport);
  host.fill(5);
  const std::vector<Segment> mixed = {
      {mine_.buffer.data(), far.address() + 100, 300, mine_.registration.get(), far.key.get()},
      {host.bytes.data(), theirs_.address(), 1000, host.registration.get(), theirs_.key.get()},
      {mine_.buffer.data() + 1000, theirs_.address() + 1000, 70001, mine_.registration.get(),
       theirs_.key.get()}};
  transfer(mixed, Operation::kWrite);
  const std::vector<std::byte> before = pattern_bytes(kBytes, 1);
  const std::vector<std::byte> there = theirs_.content();
  EXPECT_EQ(std::memcmp(far.bytes.data() + 100, before.data(), 300), 0);
  EXPECT_EQ(std::memcmp(there.data(), host.bytes.data(), 1000), 0);
  EXPECT_EQ(std::memcmp(there.data() + 1000, before.data() + 1000, 70001), 0);
}

TEST_F(TcpDeviceMemory, RevokedMemoryIsRefusedAndTheRestGoesOn) {
  right_.transport->revoke_memory(*theirs_.registration);
  const auto segments = blocks(10, 4096);
  ASSERT_TRUE(left_.channel->post(batch_of(100, segments)));
  EXPECT_EQ(outcome(left_, 100).error().code, ErrorCode::kNotFound);
  theirs_ = memory(right_, left_, 0);
  const auto others = blocks(10, 4096);
  ASSERT_TRUE(left_.channel->post(batch_of(101, others)));
  EXPECT_TRUE(outcome(left_, 101));
}

/// Frees the memory behind its registration's back; what is at the address then is a stranger's, or nothing.
struct Freed {
  Freed(DeviceMemory& memory, bool taken_again) {
    const int device = memory.buffer.device();
    const std::size_t size = memory.buffer.size();
    memory.buffer = cuda::DeviceBuffer();
    if (!taken_again) return;
    stranger = cuda::DeviceBuffer::allocate(device, size).value();
    EXPECT_TRUE(cuda::copy_now(stranger.data(), pattern_bytes(size, 8).data(), size));
  }
  void expect_untouched() const {
    if (stranger.data() == nullptr) return;
    std::vector<std::byte> bytes(stranger.size());
    EXPECT_TRUE(cuda::copy_now(bytes.data(), stranger.data(), bytes.size()));
    EXPECT_TRUE(bytes == pattern_bytes(bytes.size(), 8));
  }
  cuda::DeviceBuffer stranger;
};

TEST_F(TcpDeviceMemory, MemoryThatWasFreedOnEitherSideIsRefusedAndTheRestGoesOn) {
  for (const auto& [here, again] :
       std::vector<std::pair<bool, bool>>{{true, false}, {true, true}, {false, false}, {false, true}}) {
    SCOPED_TRACE(std::string(here ? "here" : "over there") + (again ? ", and taken again" : ""));
    mine_ = memory(left_, right_, 0);
    theirs_ = memory(right_, left_, cuda::device_count() - 1);
    ASSERT_TRUE(cuda::copy_now(mine_.buffer.data(), pattern_bytes(kBytes, 1).data(), kBytes));
    ASSERT_TRUE(cuda::copy_now(theirs_.buffer.data(), pattern_bytes(kBytes, 2).data(), kBytes));
    const auto segments = blocks(100, 4096);
    const Freed freed(here ? mine_ : theirs_, again);
    for (const Operation operation : {Operation::kWrite, Operation::kRead}) {
      ASSERT_TRUE(left_.channel->post(batch_of(first_, segments, operation)));
      const Status status = outcome(left_, first_++);
      ASSERT_FALSE(status);
      EXPECT_EQ(status.error().code, ErrorCode::kNotFound) << status.error().message;
      EXPECT_NE(status.error().message.find("was freed"), std::string::npos) << status.error().message;
    }
    freed.expect_untouched();
    EXPECT_TRUE((here ? theirs_ : mine_).content() == pattern_bytes(kBytes, here ? 2 : 1));
    (here ? mine_ : theirs_) = here ? memory(left_, right_, 0) : memory(right_, left_, 0);
    ASSERT_TRUE(cuda::copy_now(mine_.buffer.data(), pattern_bytes(kBytes, 1).data(), kBytes));
    ASSERT_TRUE(cuda::copy_now(theirs_.buffer.data(), pattern_bytes(kBytes, 2).data(), kBytes));
    const auto others = blocks(100, 4096);
    transfer(others, Operation::kWrite);
    expect(others, Operation::kWrite);
  }
}

TEST_F(TcpDeviceMemory, LossOfThePeerEndsAllBatches) {
  const auto segments = blocks(8, kMiB - 100);
  std::vector<std::vector<Segment>> cut;
  for (const Segment& segment : segments) cut.push_back({segment});
  std::uint64_t posted = 0;
  for (const auto& part : cut) {
    if (left_.channel->post(batch_of(posted + 1, part))) ++posted;
  }
  ASSERT_GT(posted, 0u);
  right_.channel.reset();
  for (std::uint64_t id = 1; id <= posted; ++id) {
    ASSERT_TRUE(drive([&] { return left_.find(id) != nullptr; }));
    const Status status = left_.find(id)->status;
    EXPECT_TRUE(status || status.error().code == ErrorCode::kPeerGone);
  }
}

TEST_F(TcpDeviceMemory, AbandonedTransfersEnd) {
  const auto segments = blocks(1, kMiB);
  ASSERT_TRUE(left_.channel->post(batch_of(1, segments)));
  left_.channel->abandon(static_cast<BatchId>(1));
  ASSERT_TRUE(left_.channel->post(batch_of(2, segments, Operation::kRead)));
  left_.channel->abandon(static_cast<BatchId>(2));
  for (const std::uint64_t id : {1, 2}) {
    ASSERT_TRUE(drive([&] { return left_.find(id) != nullptr; }));
    const Status status = left_.find(id)->status;
    EXPECT_TRUE(status || status.error().code == ErrorCode::kCancelled);
  }
  ASSERT_TRUE(left_.channel->post(batch_of(3, segments)));
  EXPECT_TRUE(outcome(left_, 3));
}

}  // namespace
}  // namespace p2p::tcp
