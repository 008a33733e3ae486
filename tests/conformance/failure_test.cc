// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// That what goes wrong is refused, reported with its cause, and harms nothing else.
#include <algorithm>
#include <limits>

#include "conformance/pair.h"
#include "support/devices.h"

namespace p2p::conformance {
namespace {

constexpr std::array kBoth{Operation::kWrite, Operation::kRead};

class FailureConformance : public Conformance {
 protected:
  /// Fails with `code`, changes nothing that was not named, and the channels work on.
  void expect_refused(Pair& pair, const Memory& remote, const RemoteKey& key, std::uint64_t address,
                      std::uint64_t size, ErrorCode code) {
    const Memory local(pair.left.transport(), size + 1000);
    for (const Operation operation : kBoth) {
      fill_pattern(local.bytes(), 5);
      fill_pattern(remote.bytes(), 6);
      const Status status = pair.left.transfer(operation, {segment(local, 0, key, address, size)});
      ASSERT_FALSE(status);
      EXPECT_EQ(status.error().code, code) << status.error().message;
      EXPECT_FALSE(status.error().message.empty());
      EXPECT_EQ(first_mismatch(local.bytes(), 5), std::nullopt);
      EXPECT_EQ(first_mismatch(remote.bytes(), 6), std::nullopt);
      EXPECT_TRUE(remote.guards_are_intact());
      expect_works(pair);
    }
  }

  static void expect_works(Pair& pair) {
    const Memory local(pair.left.transport(), 3000);
    const Memory remote(pair.right.transport(), 3000);
    const auto key = pair.left.import(remote.offer());
    fill_pattern(local.bytes(), 9);
    const Status status =
        pair.left.transfer(Operation::kWrite, {segment(local, 0, *key, remote.address(), 3000)});
    ASSERT_TRUE(status) << status.error().message;
    EXPECT_EQ(first_mismatch(remote.bytes(), 9), std::nullopt);
  }

  /// Enough work to be under way for a while.
  static constexpr std::size_t kMuch = std::size_t{16} << 20;

  static std::vector<Segment> much(const Memory& local, const RemoteKey& key, std::uint64_t remote) {
    std::vector<Segment> segments;
    for (int round = 0; round < 4; ++round) segments.push_back(segment(local, 0, key, remote, kMuch));
    return segments;
  }
};

TEST_P(FailureConformance, OutOfRange) {
  const auto pair = connected();
  const Memory remote(pair->right.transport(), 4096);
  const auto key = pair->left.import(remote.offer());
  const std::uint64_t base = remote.address();
  constexpr std::uint64_t kTop = std::numeric_limits<std::uint64_t>::max();
  struct Range {
    std::uint64_t address;
    std::uint64_t size;
  };
  for (const Range range :
       {Range{base + 4096, 1}, Range{base - 1, 1}, Range{base, 4097}, Range{base + 1, 4096},
        Range{base - 1, 4098}, Range{0, 16}, Range{kTop, 1}, Range{kTop - 9, 10}, Range{kTop - 9, 100}}) {
    SCOPED_TRACE(::testing::Message() << "offset " << range.address - base << ", size " << range.size);
    expect_refused(*pair, remote, *key, range.address, range.size, ErrorCode::kOutOfRange);
    if (HasFatalFailure()) return;
  }
}

TEST_P(FailureConformance, WrongKey) {
  const auto pair = connected();
  const Memory remote(pair->right.transport(), 4096);
  if (capabilities_.needs_exported_key)
    GTEST_SKIP() << "nothing checks keys; the engine asks the owner at import";
  RegionOffer forged = remote.offer();
  forged.info.key.back() ^= std::byte{1};
  const auto key = pair->left.import(forged);
  expect_refused(*pair, remote, *key, remote.address(), 4096, ErrorCode::kPermissionDenied);
}

TEST_P(FailureConformance, UnknownRegion) {
  const auto pair = connected();
  const Memory remote(pair->right.transport(), 4096);
  if (capabilities_.needs_exported_key)
    GTEST_SKIP() << "nothing checks keys; the engine asks the owner at import";
  RegionOffer forged = remote.offer();
  forged.info.id = RegionId{0xfffffff0};
  const auto key = pair->left.import(forged);
  expect_refused(*pair, remote, *key, remote.address(), 4096, ErrorCode::kNotFound);
}

// What is posted here has passed no engine: it is what a peer sends that asks nobody.
TEST_P(FailureConformance, ReadOnlyRegion) {
  if (capabilities_.guard != Guard::kOwner) GTEST_SKIP() << "not the owner's engine refuses";
  const auto pair = connected();
  const Memory local(pair->left.transport(), 100'000);
  const Memory remote(pair->right.transport(), 100'000, 0, {.read_only = true, .peers = {}});
  const auto key = pair->left.import(remote.offer());
  for (const std::size_t size : {std::size_t{1}, std::size_t{4096}, remote.size()}) {
    fill_pattern(local.bytes(), 1);
    fill_pattern(remote.bytes(), 2);
    const std::vector<Segment> segments{segment(local, 0, *key, remote.address(), size)};
    const Status written = pair->left.transfer(Operation::kWrite, segments);
    ASSERT_FALSE(written);
    EXPECT_EQ(written.error().code, ErrorCode::kPermissionDenied) << written.error().message;
    EXPECT_NE(written.error().message.find("read-only"), std::string::npos) << written.error().message;
    EXPECT_EQ(first_mismatch(remote.bytes(), 2), std::nullopt);
    const Status read = pair->left.transfer(Operation::kRead, segments);
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_TRUE(std::ranges::equal(local.bytes().first(size), remote.bytes().first(size)));
    expect_works(*pair);
  }
}

TEST_P(FailureConformance, RegionThatExpires) {
  if (capabilities_.guard != Guard::kOwner) GTEST_SKIP() << "such a region is not registered with it";
  const auto pair = connected();
  const Memory local(pair->left.transport(), 4096);
  const Memory lasting(pair->right.transport(), 4096, 0, {.peers = {}, .expires = std::chrono::hours(1)});
  const auto lasting_key = pair->left.import(lasting.offer());
  fill_pattern(local.bytes(), 1);
  ASSERT_TRUE(
      pair->left.transfer(Operation::kWrite, {segment(local, 0, *lasting_key, lasting.address(), 4096)}));
  EXPECT_EQ(first_mismatch(lasting.bytes(), 1), std::nullopt);

  const Memory expired(pair->right.transport(), 4096, 0,
                       {.peers = {}, .expires = std::chrono::nanoseconds(1)});
  const auto key = pair->left.import(expired.offer());
  expect_refused(*pair, expired, *key, expired.address(), 4096, ErrorCode::kPermissionDenied);
}

TEST_P(FailureConformance, RegionForNamedPeers) {
  if (capabilities_.guard != Guard::kOwner) GTEST_SKIP() << "the engine tells others nothing at import";
  Pair pair(GetParam());
  ChannelSetup owner = session_of(Role::kAcceptor);
  owner.peer_identity = "decode-1";
  const Status met = pair.connect(session_of(Role::kConnector), owner);
  ASSERT_TRUE(met) << met.error().message;
  const Memory others(pair.right.transport(), 4096, 0, {.read_only = false, .peers = {"decode-2", "decode"}});
  const auto key = pair.left.import(others.offer());
  expect_refused(pair, others, *key, others.address(), 4096, ErrorCode::kPermissionDenied);
  const Memory own(pair.right.transport(), 4096, 0, {.read_only = false, .peers = {"decode-2", "decode-1"}});
  const auto own_key = pair.left.import(own.offer());
  const Memory local(pair.left.transport(), 4096);
  fill_pattern(local.bytes(), 3);
  const Status written =
      pair.left.transfer(Operation::kWrite, {segment(local, 0, *own_key, own.address(), 4096)});
  ASSERT_TRUE(written) << written.error().message;
  EXPECT_EQ(first_mismatch(own.bytes(), 3), std::nullopt);
}

TEST_P(FailureConformance, RevokedRegion) {
  const auto pair = connected();
  Memory remote(pair->right.transport(), 4096);
  if (capabilities_.needs_exported_key)
    GTEST_SKIP() << "nothing checks keys; the engine has the peer confirm";
  const auto key = pair->left.import(remote.offer());
  remote.revoke();
  expect_refused(*pair, remote, *key, remote.address(), 4096, ErrorCode::kNotFound);
}

// The owner frees the memory right after it revoked it, while a peer writes and reads it.
TEST_P(FailureConformance, RevokedWhileInUse) {
  const auto pair = connected();
  if (capabilities_.needs_exported_key) GTEST_SKIP() << "the engine has the peer confirm that it stopped";
  const Memory local(pair->left.transport(), 2 * kMuch);
  for (const Operation operation : kBoth) {
    auto remote = std::make_unique<Memory>(pair->right.transport(), kMuch);
    const auto key = pair->left.import(remote->offer());
    const auto job = pair->left.submit(operation, much(local, *key, remote->address()));
    ASSERT_TRUE(pair->left.wait_started(*job, 2));
    remote.reset();
    ASSERT_TRUE(pair->left.wait(*job));
    for (const Status& outcome : job->outcomes) {
      if (!outcome) {
        EXPECT_EQ(outcome.error().code, ErrorCode::kNotFound) << outcome.error().message;
      }
    }
    expect_works(*pair);
  }
}

// One bad piece fails its batch, and only that.
TEST_P(FailureConformance, OneBadSegmentAmongGoodBatches) {
  const auto pair = connected();
  const std::size_t batch = capabilities_.max_batch_bytes;
  const Memory local(pair->left.transport(), 3 * batch);
  const Memory remote(pair->right.transport(), 3 * batch);
  const auto key = pair->left.import(remote.offer());
  for (const Operation operation : kBoth) {
    const auto job = pair->left.submit(
        operation, {segment(local, 0, *key, remote.address(), batch),
                    segment(local, batch, *key, remote.address() + batch, batch - 100),
                    segment(local, 2 * batch - 100, *key, remote.address() + 3 * batch - 50, 100),
                    segment(local, 2 * batch, *key, remote.address() + 2 * batch, batch)});
    ASSERT_TRUE(pair->left.wait(*job));
    ASSERT_EQ(job->outcomes.size(), 3U);
    EXPECT_TRUE(job->outcomes[0]);
    ASSERT_FALSE(job->outcomes[1]);
    EXPECT_EQ(job->outcomes[1].error().code, ErrorCode::kOutOfRange);
    EXPECT_TRUE(job->outcomes[2]);
  }
}

// Refusals overtake bytes, so that batches end in another order than they were posted in.
TEST_P(FailureConformance, RefusedBatchesAmongMany) {
  const auto pair = connected();
  constexpr std::size_t kJobs = 400;
  constexpr std::size_t kBlock = 40'000;
  const Memory local(pair->left.transport(), kJobs * kBlock);
  const Memory remote(pair->right.transport(), kJobs * kBlock);
  const auto key = pair->left.import(remote.offer());
  for (const Operation operation : kBoth) {
    fill_pattern(local.bytes(), 41);
    fill_pattern(remote.bytes(), 42);
    std::vector<std::shared_ptr<Job>> jobs;
    for (std::size_t i = 0; i < kJobs; ++i) {
      const std::uint64_t beyond = i % 3 == 0 ? remote.size() : 0;
      jobs.push_back(pair->left.submit(
          operation, {segment(local, i * kBlock, *key, remote.address() + i * kBlock + beyond, kBlock)}));
    }
    const bool write = operation == Operation::kWrite;
    for (std::size_t i = 0; i < kJobs; ++i) {
      ASSERT_TRUE(pair->left.wait(*jobs[i])) << i;
      const Status status = jobs[i]->status();
      ASSERT_EQ(status.has_value(), i % 3 != 0) << i;
      if (!status) {
        EXPECT_EQ(status.error().code, ErrorCode::kOutOfRange) << status.error().message;
      }
      const Memory& landed = write ? remote : local;
      const Memory& kept = i % 3 == 0 ? landed : write ? local : remote;
      const std::uint64_t seed = &kept == &local ? 41 : 42;
      EXPECT_EQ(landed.data()[i * kBlock], pattern_byte(seed, i * kBlock)) << i;
      EXPECT_EQ(landed.data()[i * kBlock + kBlock - 1], pattern_byte(seed, i * kBlock + kBlock - 1)) << i;
    }
  }
}

TEST_P(FailureConformance, HostileImport) {
  const auto transport = GetParam().make(options(), test_devices(options()));
  if (!capabilities_.needs_exported_key) GTEST_SKIP() << "imports nothing";
  RegionInfo info{.id = RegionId{1}, .base = reinterpret_cast<std::byte*>(0x1000), .size = 4096};
  info.size = std::numeric_limits<std::uint64_t>::max();
  EXPECT_FALSE(transport->import_region(info, {})) << "a range that wraps around";
  info.size = 4096;
  const Bytes garbage(61, std::byte{0xff});
  EXPECT_FALSE(transport->import_region(info, garbage));
}

TEST_P(FailureConformance, HostileAddresses) {
  Pair pair(GetParam());
  const auto nowhere = [](std::uint32_t, Bytes) {};
  ASSERT_TRUE(pair.left.open(session_of(Role::kConnector), nowhere));
  ASSERT_TRUE(pair.right.open(session_of(Role::kAcceptor), nowhere));
  const std::vector<Bytes> good = pair.right.addresses();
  for (std::size_t size = 0; size <= good.front().size() + 1; ++size) {
    if (size == good.front().size()) continue;
    std::vector<Bytes> bad = good;
    bad.front().resize(size);
    const Status status = pair.left.connect(bad);
    ASSERT_FALSE(status) << size << " bytes";
    EXPECT_EQ(status.error().code, ErrorCode::kProtocol) << status.error().message;
  }
}

// Whoever does not know the session's secret gets no channel.
TEST_P(FailureConformance, WrongSecret) {
  Pair pair(GetParam());
  ChannelSetup stranger = session_of(Role::kConnector);
  stranger.secret.fill(std::byte{0x66});
  const auto nowhere = [](std::uint32_t, Bytes) {};
  ASSERT_TRUE(pair.left.open(stranger, nowhere));
  ASSERT_TRUE(pair.right.open(session_of(Role::kAcceptor), nowhere));
  const Status right = pair.right.connect(pair.left.addresses());
  const Status left = pair.left.connect(pair.right.addresses());
  if (left) {
    EXPECT_FALSE(pair.left.wait_ready());
  }
  if (!right) {
    EXPECT_FALSE(right.error().message.empty());
  }
  pair.right.call([](auto& channels) {
    for (const auto& channel : channels) EXPECT_NE(channel->state(), ChannelState::kReady);
  });
}

// Destroyed channels touch no memory: it is freed at once, and what was being read stays as it is put then.
TEST_P(FailureConformance, CloseWithWorkUnderWay) {
  for (const Operation operation : kBoth) {
    const auto pair = connected();
    auto local = std::make_unique<Memory>(pair->left.transport(), kMuch);
    const Memory remote(pair->right.transport(), kMuch);
    const auto key = pair->left.import(remote.offer());
    const auto job = pair->left.submit(operation, much(*local, *key, remote.address()));
    ASSERT_TRUE(pair->left.wait_started(*job, 1));
    pair->left.close();
    fill_pattern(local->bytes(), 21);
    ASSERT_TRUE(pair->right.wait_failed());
    EXPECT_EQ(pair->right.channel_error().code, ErrorCode::kPeerGone) << pair->right.channel_error().message;
    EXPECT_EQ(first_mismatch(local->bytes(), 21), std::nullopt);
    local.reset();
  }
}

TEST_P(FailureConformance, PeerClosesWithWorkUnderWay) {
  for (const Operation operation : kBoth) {
    const auto pair = connected();
    const Memory local(pair->left.transport(), kMuch);
    const Memory remote(pair->right.transport(), kMuch);
    const auto key = pair->left.import(remote.offer());
    const auto job = pair->left.submit(operation, much(local, *key, remote.address()));
    ASSERT_TRUE(pair->left.wait_started(*job, 1));
    pair->right.close();
    ASSERT_TRUE(pair->left.wait(*job));
    for (const Status& outcome : job->outcomes) {
      if (!outcome) {
        EXPECT_EQ(outcome.error().code, ErrorCode::kPeerGone) << outcome.error().message;
      }
    }
    ASSERT_TRUE(pair->left.wait_failed());
    EXPECT_EQ(pair->left.channel_error().code, ErrorCode::kPeerGone) << pair->left.channel_error().message;
  }
}

TEST_P(FailureConformance, PeerClosesWhileIdle) {
  const auto pair = connected();
  pair->left.close();
  ASSERT_TRUE(pair->right.wait_failed());
  EXPECT_EQ(pair->right.channel_error().code, ErrorCode::kPeerGone) << pair->right.channel_error().message;
  EXPECT_FALSE(pair->right.channel_error().message.empty());
}

// After the completion of an abandoned batch its local memory is the caller's again.
TEST_P(FailureConformance, Abandon) {
  const auto pair = connected();
  const std::size_t size = capabilities_.max_batch_bytes;
  const Memory remote(pair->right.transport(), size);
  const auto key = pair->left.import(remote.offer());
  for (const Operation operation : kBoth) {
    const Memory local(pair->left.transport(), size);
    const std::vector<Segment> segments{segment(local, 0, *key, remote.address(), size)};
    fill_pattern(local.bytes(), 31);
    fill_pattern(remote.bytes(), 32);
    std::vector<Completion> completions;
    std::size_t posted = 0;
    pair->left.call([&](auto& channels) {
      for (const auto& channel : channels) {
        for (bool taken = true; taken && posted < 64;) {
          taken = channel->post({.id = BatchId{1'000'000 + posted},
                                 .operation = operation,
                                 .segments = segments,
                                 .bytes = size});
          if (taken) ++posted;
        }
      }
      for (std::size_t i = 0; i < posted; ++i) {
        for (const auto& channel : channels) channel->abandon(BatchId{1'000'000 + i});
      }
      const auto deadline = std::chrono::steady_clock::now() + kPatience;
      while (completions.size() < posted && std::chrono::steady_clock::now() < deadline) {
        pair->left.take_deliveries();
        for (const auto& channel : channels) channel->progress(completions);
      }
      set_all(local.bytes(), std::byte{0x3c});
    });
    ASSERT_EQ(completions.size(), posted);
    for (const Completion& completion : completions) {
      if (!completion.status) {
        EXPECT_EQ(completion.status.error().code, ErrorCode::kCancelled) << completion.status.error().message;
      }
    }
    // What the peer still had on its way has come, or was dropped, when a later transfer has ended.
    expect_works(*pair);
    EXPECT_TRUE(std::ranges::all_of(local.bytes(), [](std::byte byte) { return byte == std::byte{0x3c}; }));
    for (std::size_t i = 0; operation == Operation::kWrite && i < size; ++i) {
      const std::byte landed = remote.data()[i];
      ASSERT_TRUE(landed == pattern_byte(31, i) || landed == pattern_byte(32, i)) << "at " << i;
    }
  }
}

P2P_FOR_EVERY_TRANSPORT(FailureConformance);

}  // namespace
}  // namespace p2p::conformance
