// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// That bytes arrive: every transport, any size, any number of pieces, either operation, both directions.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "conformance/pair.h"

namespace p2p::conformance {
namespace {

constexpr std::array kBoth{Operation::kWrite, Operation::kRead};

class TransferConformance : public Conformance {
 protected:
  /// Moves the source's bytes (filled here) to the destination (cleared here) in the pieces given.
  struct Piece {
    std::size_t local = 0;
    std::size_t remote = 0;
    std::size_t size = 0;
  };

  static void move_and_check(Peer& mover, Operation operation, const Memory& local, const Memory& remote,
                             const std::vector<Piece>& pieces) {
    const bool write = operation == Operation::kWrite;
    const Memory& source = write ? local : remote;
    const Memory& destination = write ? remote : local;
    mover.await_twins_turn();
    fill_pattern(source.bytes(), ++seed_);
    set_all(destination.bytes(), std::byte{0xee});
    std::vector<std::byte> expected(destination.size(), std::byte{0xee});
    const auto key = mover.import(remote.offer());
    std::vector<Segment> segments;
    for (const Piece& piece : pieces) {
      segments.push_back(segment(local, piece.local, *key, remote.address() + piece.remote, piece.size));
      if (piece.size == 0) continue;
      std::memcpy(expected.data() + (write ? piece.remote : piece.local),
                  source.data() + (write ? piece.local : piece.remote), piece.size);
    }
    const Status status = mover.transfer(operation, std::move(segments));
    ASSERT_TRUE(status) << status.error().message;
    ASSERT_TRUE(std::ranges::equal(destination.bytes(), expected));
    ASSERT_EQ(first_mismatch(source.bytes(), seed_), std::nullopt);
    ASSERT_TRUE(local.guards_are_intact() && remote.guards_are_intact());
  }

  /// `count` blocks, in an order of their own on each side.
  static std::vector<Piece> shuffled(std::size_t count, std::size_t size) {
    std::vector<std::size_t> order(count);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::vector<std::size_t> other = order;
    std::mt19937 random(static_cast<unsigned>(count));
    std::ranges::shuffle(order, random);
    std::ranges::shuffle(other, random);
    std::vector<Piece> pieces;
    for (std::size_t i = 0; i < count; ++i) pieces.push_back({order[i] * size, other[i] * size, size});
    return pieces;
  }

  static inline std::uint64_t seed_ = 0;
};

TEST_P(TransferConformance, Sizes) {
  const auto pair = connected();
  const std::size_t batch = capabilities_.max_batch_bytes;
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{4095},
                                 std::size_t{65537}, batch - 1, batch, batch + 1, 3 * batch + 17}) {
    const Memory local(pair->left.transport(), std::max(size, std::size_t{1}));
    const Memory remote(pair->right.transport(), std::max(size, std::size_t{1}));
    for (const Operation operation : kBoth) {
      SCOPED_TRACE(size);
      move_and_check(pair->left, operation, local, remote, {{0, 0, size}});
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(TransferConformance, AcceptorMoves) {
  const auto pair = connected();
  const Memory local(pair->right.transport(), 100'001);
  const Memory remote(pair->left.transport(), 100'001);
  for (const Operation operation : kBoth) {
    move_and_check(pair->right, operation, local, remote, {{0, 0, 100'001}});
  }
}

TEST_P(TransferConformance, ManySegments) {
  const auto pair = connected();
  for (const std::size_t count : {1, 2, 1023, 1024, 1025, 10'000}) {
    constexpr std::size_t kBlock = 333;
    const Memory local(pair->left.transport(), count * kBlock);
    const Memory remote(pair->right.transport(), count * kBlock);
    for (const Operation operation : kBoth) {
      SCOPED_TRACE(count);
      move_and_check(pair->left, operation, local, remote, shuffled(count, kBlock));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(TransferConformance, HundredThousandSegments) {
  const auto pair = connected();
  const Memory local(pair->left.transport(), 100'000 * 37);
  const Memory remote(pair->right.transport(), 100'000 * 37);
  for (const Operation operation : kBoth) {
    move_and_check(pair->left, operation, local, remote, shuffled(100'000, 37));
    if (HasFatalFailure()) return;
  }
}

TEST_P(TransferConformance, EmptySegmentsAmongOthers) {
  const auto pair = connected();
  const Memory local(pair->left.transport(), 4096);
  const Memory remote(pair->right.transport(), 4096);
  for (const Operation operation : kBoth) {
    move_and_check(pair->left, operation, local, remote,
                   {{0, 0, 0}, {0, 100, 50}, {10, 10, 0}, {4096, 4096, 0}, {1000, 0, 7}, {4096, 0, 0}});
  }
}

TEST_P(TransferConformance, UnalignedAddresses) {
  const auto pair = connected();
  for (std::size_t misalignment = 0; misalignment < 9; ++misalignment) {
    const Memory local(pair->left.transport(), 20'000, misalignment);
    const Memory remote(pair->right.transport(), 20'000, 9 - misalignment);
    for (const Operation operation : kBoth) {
      move_and_check(pair->left, operation, local, remote,
                     {{misalignment, 3, 12'347}, {13'001, 12'999, 4099}});
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(TransferConformance, ScatteredOnOneSideOnly) {
  const auto pair = connected();
  const Memory local(pair->left.transport(), 2000 * 512);
  const Memory remote(pair->right.transport(), 2000 * 512);
  std::vector<Piece> pieces = shuffled(2000, 512);
  for (const Operation operation : kBoth) {
    for (std::size_t i = 0; i < pieces.size(); ++i) pieces[i].local = i * 512;
    move_and_check(pair->left, operation, local, remote, pieces);
    for (Piece& piece : pieces) std::swap(piece.local, piece.remote);
    move_and_check(pair->left, operation, local, remote, pieces);
  }
}

TEST_P(TransferConformance, ManyRegionsInOneBatch) {
  const auto pair = connected();
  constexpr std::size_t kRegions = 64;
  constexpr std::size_t kBlock = 129;
  std::vector<std::unique_ptr<Memory>> local;
  std::vector<std::unique_ptr<Memory>> remote;
  std::vector<std::shared_ptr<RemoteKey>> keys;
  for (std::size_t i = 0; i < kRegions; ++i) {
    local.push_back(std::make_unique<Memory>(pair->left.transport(), 2 * kBlock));
    remote.push_back(std::make_unique<Memory>(pair->right.transport(), 2 * kBlock));
    keys.push_back(pair->left.import(remote.back()->offer()));
  }
  for (const Operation operation : kBoth) {
    const bool write = operation == Operation::kWrite;
    for (std::size_t i = 0; i < kRegions; ++i) fill_pattern((write ? local : remote)[i]->bytes(), 1000 + i);
    std::vector<Segment> segments;
    for (const std::size_t half : {std::size_t{0}, kBlock}) {
      for (std::size_t i = 0; i < kRegions; ++i) {
        const std::size_t there = kRegions - 1 - i;
        segments.push_back(segment(*local[i], half, *keys[there], remote[there]->address() + half, kBlock));
      }
    }
    const Status status = pair->left.transfer(operation, std::move(segments));
    ASSERT_TRUE(status) << status.error().message;
    for (std::size_t i = 0; i < kRegions; ++i) {
      const Memory& landed = *(write ? remote : local)[i];
      EXPECT_EQ(first_mismatch(landed.bytes(), 1000 + kRegions - 1 - i), std::nullopt) << i;
      set_all(landed.bytes(), std::byte{});
    }
  }
}

TEST_P(TransferConformance, OverlappingRegistrations) {
  const auto pair = connected();
  const Memory local(pair->left.transport(), 8192);
  const Memory whole(pair->right.transport(), 8192);
  const Memory again(pair->right.transport(), whole.bytes());
  const Memory middle(pair->right.transport(), whole.bytes().subspan(1024, 4096));
  for (const Memory* region : {&whole, &again, &middle}) {
    for (const Operation operation : kBoth) {
      move_and_check(pair->left, operation, local, *region, {{0, 0, region->size()}});
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(TransferConformance, BothDirectionsAtOnce) {
  const auto pair = connected();
  const std::size_t size = std::size_t{4} << 20;
  const auto run = [&](Peer& mover, Peer& owner, std::uint64_t seed) {
    auto local = std::make_unique<Memory>(mover.transport(), 2 * size);
    auto remote = std::make_unique<Memory>(owner.transport(), 2 * size);
    fill_pattern(local->bytes().first(size), seed);
    fill_pattern(remote->bytes().last(size), seed + 1);
    auto key = mover.import(remote->offer());
    auto write = mover.submit(Operation::kWrite, {segment(*local, 0, *key, remote->address(), size)});
    auto read = mover.submit(Operation::kRead, {segment(*local, size, *key, remote->address() + size, size)});
    return std::tuple(std::move(local), std::move(remote), std::move(key), std::move(write), std::move(read));
  };
  const auto leftward = run(pair->right, pair->left, 500);
  const auto rightward = run(pair->left, pair->right, 600);
  const auto check = [&](Peer& mover, const auto& moved, std::uint64_t seed) {
    const auto& [local, remote, key, write, read] = moved;
    ASSERT_TRUE(mover.wait(*write));
    ASSERT_TRUE(mover.wait(*read));
    EXPECT_TRUE(write->status() && read->status());
    EXPECT_EQ(first_mismatch(remote->bytes().first(size), seed), std::nullopt);
    EXPECT_EQ(first_mismatch(local->bytes().last(size), seed + 1), std::nullopt);
  };
  check(pair->right, leftward, 500);
  check(pair->left, rightward, 600);
}

// Posts until every channel refuses, lets them work, and posts again.
TEST_P(TransferConformance, FullQueues) {
  const auto pair = connected();
  constexpr std::size_t kBlock = 1000;
  const Memory local(pair->left.transport(), kBlock);
  const Memory remote(pair->right.transport(), kBlock);
  const auto key = pair->left.import(remote.offer());
  fill_pattern(local.bytes(), 77);
  const std::vector<Segment> segments{segment(local, 0, *key, remote.address(), kBlock)};
  pair->left.call([&](auto& channels) {
    for (const auto& channel : channels) {
      constexpr std::uint64_t kMany = 1 << 20;
      std::uint64_t posted = 0;
      const auto batch = [&] { return Batch{.id = BatchId{posted}, .segments = segments, .bytes = kBlock}; };
      while (posted < kMany && channel->post(batch())) ++posted;
      EXPECT_GT(posted, 0U);
      EXPECT_LT(posted, kMany) << "nothing bounds what a channel takes";
      std::vector<Completion> completions;
      const auto deadline = std::chrono::steady_clock::now() + kPatience;
      const auto drain_until = [&](std::uint64_t count) {
        while (completions.size() < count && std::chrono::steady_clock::now() < deadline) {
          pair->left.take_deliveries();
          channel->progress(completions);
        }
      };
      drain_until(posted);
      ASSERT_EQ(completions.size(), posted);
      ASSERT_TRUE(channel->post(batch())) << "an idle channel refused";
      drain_until(++posted);
      std::vector<bool> seen(posted);
      for (const Completion& completion : completions) {
        EXPECT_TRUE(completion.status) << completion.status.error().message;
        const auto id = static_cast<std::uint64_t>(completion.id);
        ASSERT_LT(id, posted);
        EXPECT_FALSE(seen[id]) << "completed twice";
        seen[id] = true;
      }
      EXPECT_EQ(completions.size(), posted);
    }
  });
  EXPECT_EQ(first_mismatch(remote.bytes(), 77), std::nullopt);
}

// Channels of one transport that come and go leave the others, and what is registered, alone.
TEST_P(TransferConformance, ManyLives) {
  for (int life = 0; life < 20; ++life) {
    const auto pair = connected();
    const Memory local(pair->left.transport(), 5000);
    const Memory remote(pair->right.transport(), 5000);
    move_and_check(pair->left, Operation::kWrite, local, remote, {{0, 0, 5000}});
    if (HasFatalFailure()) return;
  }
}

P2P_FOR_EVERY_TRANSPORT(TransferConformance);

}  // namespace
}  // namespace p2p::conformance
