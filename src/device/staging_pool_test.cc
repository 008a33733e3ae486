// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "device/staging_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <set>
#include <vector>

#include "base/error.h"
#include "device/staging.h"
#include "drivers/cuda/device.h"
#include "drivers/cuda/memory.h"
#include "support/eventually.h"

namespace p2p::device {
namespace {

using testing::eventually;

constexpr std::size_t kSlot = 64;
constexpr std::size_t kSlotsPerStream = 8;

StagingPool::Limits limits(std::size_t slots) {
  return {.slot_bytes = kSlot, .slots_per_stream = kSlotsPerStream, .slots = slots};
}

/// Heap in place of pinned memory, and no copiers at all.
struct Makers {
  std::atomic<std::size_t> bytes{0};
  std::atomic<int> copiers{0};
  std::atomic<bool> fails{false};
  std::atomic<int> device{-2};  // that memory was last asked for

  StagingPool::Allocate allocate = [this](std::size_t size, int near) -> Result<std::shared_ptr<std::byte>> {
    if (fails) return fail(ErrorCode::kSystem, "no memory");
    bytes += size;
    device = near;
    return std::shared_ptr<std::byte>(new std::byte[size], std::default_delete<std::byte[]>());
  };
  Copiers::Open open = [this](int, const Copier::Limits&) -> Result<std::unique_ptr<Copier>> {
    ++copiers;
    return std::unique_ptr<Copier>();
  };
};

TEST(StagingPool, MakesNothingBeforeADeviceAndAStreamAreKnown) {
  Makers makers;
  StagingPool pool(limits(64), makers.allocate, makers.open);
  pool.add_stream();
  EXPECT_TRUE(pool.settled());
  StagingPool other(limits(64), makers.allocate, makers.open);
  other.add_device(0);
  EXPECT_TRUE(other.settled());
  EXPECT_EQ(makers.bytes, 0u);
  EXPECT_EQ(makers.copiers, 0);
}

TEST(StagingPool, MakesAheadWhatStreamsAndDevicesWant) {
  Makers makers;
  StagingPool pool(limits(1000), makers.allocate, makers.open);
  pool.add_device(0);
  pool.add_stream();
  ASSERT_TRUE(eventually([&] { return pool.settled(); }));
  EXPECT_EQ(pool.slots(), kSlotsPerStream);
  EXPECT_EQ(makers.bytes, pool.slots() * kSlot);
  EXPECT_EQ(makers.copiers, 1);
  pool.add_stream();
  pool.add_device(1);
  ASSERT_TRUE(eventually([&] { return pool.settled(); }));
  EXPECT_EQ(pool.slots(), 2 * kSlotsPerStream);
  EXPECT_EQ(makers.copiers, 4);
  // A stream that comes in place of another finds all there.
  pool.remove_stream();
  pool.add_stream();
  EXPECT_TRUE(pool.settled());
  EXPECT_EQ(makers.copiers, 4);
}

TEST(StagingPool, AsksForMemoryNextToTheFirstDevice) {
  Makers makers;
  StagingPool pool(limits(1000), makers.allocate, makers.open);
  ASSERT_NE(pool.take(true).value(), nullptr);
  EXPECT_EQ(makers.device, -1);
  pool.add_device(3);
  pool.add_device(1);
  pool.add_stream();
  ASSERT_TRUE(eventually([&] { return pool.settled(); }));
  EXPECT_EQ(makers.device, 3);
}

TEST(StagingPool, StopsAtItsLimitButGivesWhatMustBe) {
  Makers makers;
  StagingPool pool(limits(4), makers.allocate, makers.open);
  pool.add_device(0);
  for (int i = 0; i < 8; ++i) pool.add_stream();
  ASSERT_TRUE(eventually([&] { return pool.settled(); }));
  EXPECT_EQ(pool.slots(), 4u);
  std::set<std::byte*> taken;
  for (int i = 0; i < 4; ++i) taken.insert(pool.take(false).value());
  EXPECT_EQ(pool.take(false).value(), nullptr);
  for (int i = 0; i < 3; ++i) taken.insert(pool.take(true).value());
  EXPECT_EQ(taken.size(), 7u);
  EXPECT_FALSE(taken.contains(nullptr));
  for (std::byte* const slot : taken) std::memset(slot, 1, kSlot);
  pool.give_back(*taken.begin());
  EXPECT_NE(pool.take(false).value(), nullptr);
}

TEST(StagingPool, GoesOnWithoutWhatCouldNotBeMade) {
  Makers makers;
  makers.fails = true;
  StagingPool pool(limits(64), makers.allocate, makers.open);
  pool.add_device(0);
  pool.add_stream();
  ASSERT_TRUE(eventually([&] { return pool.settled(); }));
  EXPECT_EQ(pool.slots(), 0u);
  EXPECT_EQ(pool.take(false).value(), nullptr);
  EXPECT_EQ(pool.take(true).error().message, "no memory");
  makers.fails = false;
  EXPECT_NE(pool.take(true).value(), nullptr);
}

TEST(StagingPool, EndsInTheMiddleOfItsWork) {
  for (int round = 0; round < 50; ++round) {
    Makers makers;
    StagingPool pool(limits(10'000), makers.allocate, makers.open);
    for (int i = 0; i < 100; ++i) pool.add_stream();
    pool.add_device(round);
  }
}

TEST(Staging, KeepsToItsShareOfEachUse) {
  Makers makers;
  const auto pool = std::make_shared<StagingPool>(limits(0), makers.allocate, makers.open);
  using Use = Staging::Use;
  {
    Staging one(pool, {.slots = {3, 4, 2}}, true);
    Staging::Slot* const first = one.take(Use::kDeparture).value();
    ASSERT_NE(first, nullptr);
    ASSERT_NE(one.take(Use::kDeparture).value(), nullptr);
    // Made together with the ones before; more are not made for a stream that has two.
    ASSERT_NE(one.take(Use::kDeparture).value(), nullptr);
    EXPECT_EQ(one.take(Use::kDeparture).value(), nullptr);
    one.give_back(*first);
    EXPECT_NE(one.take(Use::kDeparture).value(), nullptr);
    for (int i = 0; i < 4; ++i) EXPECT_NE(one.take(Use::kArrival).value(), nullptr);
    EXPECT_EQ(one.take(Use::kArrival).value(), nullptr);
    Staging other(pool, {.slots = {30, 4, 2}}, true);
    std::size_t others = 0;
    while (other.take(Use::kDeparture).value() != nullptr) ++others;
    EXPECT_LT(others, 30u);
    EXPECT_GE(others, 2u);
  }
  // What they held is there again.
  Staging next(pool, {.slots = {3, 4, 2}}, true);
  const std::size_t before = pool->slots();
  for (int i = 0; i < 3; ++i) EXPECT_NE(next.take(Use::kDeparture).value(), nullptr);
  EXPECT_EQ(pool->slots(), before);
}

TEST(Staging, WhoIsNotExpectedToStageGetsHisSlotsWithTheFirst) {
  Makers makers;
  const auto pool = std::make_shared<StagingPool>(limits(1000), makers.allocate, makers.open);
  pool->add_device(0);
  Staging staging(pool, {.slots = {3, 4, 2}}, false);
  ASSERT_TRUE(eventually([&] { return pool->settled(); }));
  EXPECT_EQ(pool->slots(), 0U);
  EXPECT_NE(staging.take(Staging::Use::kDeparture).value(), nullptr);
  EXPECT_TRUE(eventually([&] { return pool->settled() && pool->slots() >= kSlotsPerStream; }));
}

TEST(Staging, IsServedAheadOnceItIsExpected) {
  Makers makers;
  const auto pool = std::make_shared<StagingPool>(limits(1000), makers.allocate, makers.open);
  pool->add_device(0);
  {
    Staging staging(pool, {.slots = {4, 0, 4}}, false);
    ASSERT_TRUE(eventually([&] { return pool->settled(); }));
    EXPECT_EQ(pool->slots(), 0U);
    for (int again = 0; again < 2; ++again) staging.expect();
    EXPECT_TRUE(eventually([&] { return pool->settled() && pool->slots() == kSlotsPerStream; }));
    EXPECT_EQ(makers.copiers, 1);
  }
  // It was one stream, and is gone: another finds all there.
  const Staging next(pool, {.slots = {4, 0, 4}}, true);
  EXPECT_TRUE(pool->settled());
  EXPECT_EQ(makers.copiers, 1);
}

TEST(Staging, HostMemoryNeedsNoCopier) {
  Makers makers;
  const auto pool = std::make_shared<StagingPool>(limits(0), makers.allocate, makers.open);
  Staging staging(pool, {.slots = {1, 1, 1}}, true);
  Staging::Slot* const slot = staging.take(Staging::Use::kDeparture).value();
  std::vector<std::byte> from(10, std::byte{7});
  std::vector<std::byte> to(10);
  const StagedPiece source{from.data(), from.size(), -1};
  const StagedPiece target{to.data(), to.size(), -1};
  staging.pack(*slot, {&source, 1});
  EXPECT_TRUE(slot->finished());
  staging.unpack(*slot, {&target, 1});
  EXPECT_TRUE(slot->finished());
  EXPECT_TRUE(slot->status());
  EXPECT_EQ(to, from);
}

TEST(StagingPool, MakesPinnedMemoryOnADevice) {
  StagingPool pool({.slot_bytes = 1 << 20,
                    .slots_per_stream = kSlotsPerStream,
                    .slots = 16,
                    .copier = {.grid = {.ctas = 8}, .bulk_bytes = 1 << 25, .blocks = 64, .lists = 4}});
  pool.add_device(0);
  pool.add_stream();
  ASSERT_TRUE(eventually([&] { return pool.settled(); }));
  if (const Status status = cuda::available(); !status) {
    EXPECT_EQ(pool.take(true).error().code, ErrorCode::kUnavailable);
    EXPECT_EQ(pool.copiers().take(0).error().code, ErrorCode::kUnavailable);
    GTEST_SKIP() << status.error().message;
  }
  EXPECT_EQ(pool.slots(), kSlotsPerStream);
  std::byte* const slot = pool.take(false).value();
  ASSERT_NE(slot, nullptr);
  std::memset(slot, 3, 1 << 20);
  auto copier = pool.copiers().take(0).value();
  auto device = cuda::DeviceBuffer::allocate(0, 1 << 20, true).value();
  Copier::List* const list = copier->take();
  copier->add(*list, {slot, device.data(), 1 << 20});
  copier->start(*list);
  ASSERT_TRUE(eventually([&] { return copier->finished(*list); }));
  EXPECT_TRUE(list->status());
  copier->give_back(*list);
  std::vector<std::byte> got(1 << 20);
  ASSERT_TRUE(cuda::copy_now(got.data(), device.data(), got.size()));
  EXPECT_EQ(got, std::vector<std::byte>(1 << 20, std::byte{3}));
  pool.copiers().give_back(std::move(copier));
  pool.give_back(slot);
}

TEST(Copiers, KeepWhatIsGivenBack) {
  Copiers copiers({.grid = {.ctas = 8}, .bulk_bytes = 1 << 25, .blocks = 64, .lists = 4});
  if (const Status status = cuda::available(); !status) {
    EXPECT_EQ(copiers.reserve(0, 2).error().code, ErrorCode::kUnavailable);
    EXPECT_EQ(copiers.take(0).error().code, ErrorCode::kUnavailable);
    GTEST_SKIP() << status.error().message;
  }
  ASSERT_TRUE(copiers.reserve(0, 1));
  auto first = copiers.take(0).value();
  const Copier* const address = first.get();
  copiers.give_back(std::move(first));
  EXPECT_FALSE(copiers.make_one(0, 1).value());
  auto again = copiers.take(0).value();
  EXPECT_EQ(again.get(), address);
  const auto memory = cuda::DeviceBuffer::allocate(0, Copier::kRehearsed, true).value();
  EXPECT_TRUE(again->rehearse(memory.data(), memory.data(), Copier::kRehearsed));
  // One that is at work is not kept for others.
  copiers.give_back(std::move(again));
  auto busy = copiers.take(0).value();
  ASSERT_NE(busy->take(), nullptr);
  copiers.give_back(std::move(busy));
  EXPECT_TRUE(copiers.make_one(0, 1).value());
}

}  // namespace
}  // namespace p2p::device
