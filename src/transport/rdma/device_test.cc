// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// What only a real device shows: that it refuses what it should, and that the channel is repaired. Skipped
// where there is none; scripts/test_rdma.sh runs it where there is.
#include <gtest/gtest.h>

#include <algorithm>

#include "transport/rdma/channel_pair.h"

namespace p2p::rdma {
namespace {

using testing::ChannelPair;

class RdmaDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const Status usable = pair_.left.transport.probe();
    if (!usable) GTEST_SKIP() << usable.error().message;
    pair_.connect();
  }

  /// What becomes of a write of 1000 bytes to `remote` over `key`.
  Status write(std::uint64_t id, const RemoteKey& key, std::size_t remote) {
    std::vector segments{pair_.segment(pair_.left, 0, remote, 1000)};
    segments[0].key = &key;
    auto& ended = pair_.left.ended;
    bool posted = false;
    const bool done = pair_.serve_until([&] {
      posted = posted || pair_.post(pair_.left, id, segments);
      return ended.contains(id);
    });
    if (!done) return tl::unexpected(Error{ErrorCode::kTimedOut, "the batch did not end"});
    return ended[id];
  }

  void expect_works(std::uint64_t id) {
    std::ranges::fill(pair_.right.memory, std::byte{});
    const Status written = write(id, *pair_.left.key, 5000);
    ASSERT_TRUE(written) << written.error().message;
    EXPECT_TRUE(std::equal(pair_.left.memory.begin(), pair_.left.memory.begin() + 1000,
                           pair_.right.memory.begin() + 5000));
    EXPECT_TRUE(ChannelPair::ready(pair_.left) && ChannelPair::ready(pair_.right));
  }

  void expect_refused(std::uint64_t id, const RemoteKey& key, std::size_t remote) {
    std::ranges::fill(pair_.right.memory, std::byte{});
    const Status refused = write(id, key, remote);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kPermissionDenied) << refused.error().message;
    EXPECT_TRUE(std::ranges::all_of(pair_.right.memory, [](std::byte byte) { return byte == std::byte{}; }));
  }

  ChannelPair pair_{Options{}, nullptr};
};

TEST_F(RdmaDeviceTest, WrongKey) {
  Bytes forged = pair_.right.registration->export_key();
  for (std::size_t i = 1; i < forged.size(); i += 4) forged[i] ^= std::byte{0x55};
  const auto key = pair_.left.transport.import_region(pair_.right.registration->info(), forged).value();
  for (std::uint64_t round = 0; round < 3; ++round) {
    expect_refused(10 * round, *key, 0);
    expect_works(10 * round + 1);
  }
}

TEST_F(RdmaDeviceTest, RangePastTheEnd) {
  RegionInfo wide = pair_.right.registration->info();
  wide.size += 4096;  // as a peer would that lies to itself
  const auto key = pair_.left.transport.import_region(wide, pair_.right.registration->export_key()).value();
  expect_refused(1, *key, pair_.right.memory.size() - 500);
  expect_works(2);
}

TEST_F(RdmaDeviceTest, KeyAfterDeregistration) {
  const RegionInfo info = pair_.right.registration->info();
  auto other = pair_.right.transport.register_memory(info).value();
  const auto key = pair_.left.transport.import_region(info, other->export_key()).value();
  ASSERT_TRUE(write(1, *key, 0));
  pair_.right.transport.revoke_memory(*other);
  other.reset();
  expect_refused(2, *key, 0);
  expect_works(3);
}

// The victim of a repair has work of its own under way, which must end well.
TEST_F(RdmaDeviceTest, RepairLeavesThePeersOwnWorkAlone) {
  const std::vector theirs{pair_.segment(pair_.right, 0, 200'000, 800'000)};
  ASSERT_TRUE(pair_.post(pair_.right, 7, theirs, Operation::kRead));
  Bytes forged = pair_.right.registration->export_key();
  for (std::size_t i = 1; i < forged.size(); i += 4) forged[i] ^= std::byte{0x55};
  const auto key = pair_.left.transport.import_region(pair_.right.registration->info(), forged).value();
  const Status refused = write(1, *key, 0);
  ASSERT_FALSE(refused);
  ASSERT_TRUE(pair_.serve_until([&] { return pair_.right.ended.contains(7); }));
  EXPECT_TRUE(pair_.right.ended[7]);
  EXPECT_TRUE(std::equal(pair_.right.memory.begin(), pair_.right.memory.begin() + 800'000,
                         pair_.left.memory.begin() + 200'000));
}

}  // namespace
}  // namespace p2p::rdma
