// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Exported keys, and what becomes of them on the other side.
#include "transport/cuda_ipc/memory/mappings.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "support/eventually.h"
#include "transport/cuda_ipc/memory/key.h"
#include "transport/cuda_ipc/memory/regions.h"

namespace p2p::cuda_ipc {
namespace {

SharedMemory some_memory(std::uint64_t base, std::uint64_t buffer_id) {
  SharedMemory memory;
  memory.owner.pid = 7;
  memory.handle.fill(std::byte{9});
  memory.base = base;
  memory.size = 4096;
  memory.buffer_id = buffer_id;
  return memory;
}

TEST(CudaIpcKey, SurvivesTheWire) {
  SharedMemory memory = some_memory(0x7f0000000000, 12);
  memory.device[3] = std::byte{4};
  const std::vector<AllocationId> neighbours{{5, 6, {std::byte{1}}}, {7, 8, {std::byte{2}}}};
  const auto key = decode_key(encode(ExportedKey{.memory = memory, .neighbours = neighbours, .refusal = ""}));
  ASSERT_TRUE(key && key->memory);
  EXPECT_EQ(key->memory->owner, memory.owner);
  EXPECT_EQ(key->memory->device, memory.device);
  EXPECT_EQ(key->memory->handle, memory.handle);
  EXPECT_EQ(key->memory->base, memory.base);
  EXPECT_EQ(key->memory->size, memory.size);
  EXPECT_EQ(key->memory->buffer_id, memory.buffer_id);
  EXPECT_EQ(key->neighbours, neighbours);
  const auto refused =
      decode_key(encode(ExportedKey{.memory = {}, .neighbours = {}, .refusal = "it was freed"}));
  ASSERT_TRUE(refused);
  EXPECT_FALSE(refused->memory);
  EXPECT_EQ(refused->refusal, "it was freed");
  const ChunkedMemory chunks{.owner = memory.owner,
                             .device = memory.device,
                             .ticket = {{std::byte{1}}, 2, {std::byte{3}}},
                             .base = 4096,
                             .size = 8192,
                             .count = 2};
  const RingTicket ticket{.owner = {}, .ticket = {{std::byte{1}}, 2, {std::byte{3}}}};
  const auto lends = decode_key(encode(ExportedKey{.is_private = true, .ring = ticket, .refusal = "pooled"}));
  ASSERT_TRUE(lends);
  EXPECT_TRUE(lends->is_private);
  EXPECT_EQ(lends->ring, ticket);
  EXPECT_EQ(lends->refusal, "pooled");
  SharedMemory allocation;
  allocation.base = 4096;
  allocation.size = 100;
  const auto both = decode_key(encode(ExportedKey{.memory = allocation, .ring = ticket}));
  ASSERT_TRUE(both && both->memory);
  EXPECT_EQ(both->ring, ticket);
  const auto lends_not = decode_key(encode(ExportedKey{.is_private = true, .refusal = "pooled"}));
  ASSERT_TRUE(lends_not);
  EXPECT_FALSE(lends_not->ring);
  const auto chunked = decode_key(encode(ExportedKey{.chunks = chunks}));
  ASSERT_TRUE(chunked && chunked->chunks);
  EXPECT_FALSE(chunked->memory);
  EXPECT_EQ(chunked->chunks->owner, chunks.owner);
  EXPECT_EQ(chunked->chunks->device, chunks.device);
  EXPECT_EQ(chunked->chunks->ticket, chunks.ticket);
  EXPECT_EQ(chunked->chunks->base, chunks.base);
  EXPECT_EQ(chunked->chunks->size, chunks.size);
  EXPECT_EQ(chunked->chunks->count, chunks.count);
  const auto address = decode_address(encode(ChannelAddress{.process = memory.owner, .probe = memory}));
  ASSERT_TRUE(address && address->probe);
  EXPECT_EQ(address->process, memory.owner);
  EXPECT_FALSE(address->twin);
  const TwinAddress twin{.place = 77, .listener = {std::byte{5}}};
  const auto meets =
      decode_address(encode(ChannelAddress{.process = memory.owner, .probe = {}, .twin = twin}));
  ASSERT_TRUE(meets && meets->twin);
  EXPECT_EQ(meets->twin->place, twin.place);
  EXPECT_EQ(meets->twin->listener, twin.listener);
}

TEST(CudaIpcKey, RefusesWhatItDidNotWrite) {
  const Bytes good =
      encode(ExportedKey{.memory = some_memory(4096, 1), .neighbours = {{1, 2, {}}}, .refusal = ""});
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(decode_key(ByteView(good).first(size))) << size;
  }
  Bytes longer = good;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(decode_key(longer));
  SharedMemory wraps = some_memory(~std::uint64_t{0} - 100, 1);
  EXPECT_FALSE(decode_key(encode(ExportedKey{.memory = wraps, .neighbours = {}, .refusal = ""})));
  EXPECT_FALSE(decode_address(encode(ChannelAddress{.process = {}, .probe = wraps})));
  const Bytes plain = encode(ChannelAddress{});
  const Bytes meets = encode(ChannelAddress{.process = {}, .probe = {}, .twin = TwinAddress{}});
  for (std::size_t size = 0; size < meets.size(); ++size) {
    EXPECT_EQ(decode_address(ByteView(meets).first(size)).has_value(), size == plain.size()) << size;
  }
  for (const ChunkedMemory& wrong :
       {ChunkedMemory{.base = 1, .size = 4096, .count = 0}, ChunkedMemory{.base = 1, .size = 3, .count = 4},
        ChunkedMemory{.base = 1, .size = std::uint64_t{1} << 40, .count = kMaxChunks + 1},
        ChunkedMemory{.base = 4096, .size = ~std::uint64_t{0}, .count = 1}}) {
    EXPECT_FALSE(decode_key(encode(ExportedKey{.chunks = wrong})));
  }
  Bytes other_version = good;
  other_version[0] = std::byte{99};
  EXPECT_EQ(decode_key(other_version).error().code, ErrorCode::kProtocol);
}

AllocationId id_of(std::uint64_t base, std::uint64_t buffer_id) {
  return {base, buffer_id, some_memory(base, buffer_id).handle};
}

/// A driver that opens everything, at address 0, and says what it is told to say.
struct FakeDriver {
  int opened = 0;
  bool covered = true;
  cuda::IpcHandle last{};
  Mappings::Open open = [this](const cuda::IpcHandle& handle, int) -> Result<cuda::IpcMapping> {
    ++opened;
    last = handle;
    return cuda::IpcMapping();
  };
  Mappings::Covers covers = [this](const std::byte*, const std::byte*, std::uint64_t) { return covered; };
};

TEST(Mappings, OpensAnAllocationOncePerDevice) {
  FakeDriver driver;
  Mappings mappings({}, driver.open, driver.covers);
  const auto first = mappings.get(some_memory(4096, 1), {}, 0);
  const auto again = mappings.get(some_memory(4096, 1), {}, 0);
  ASSERT_TRUE(first && again);
  EXPECT_EQ(first->mapping, again->mapping);
  EXPECT_EQ(driver.opened, 1);
  ASSERT_TRUE(mappings.get(some_memory(4096, 1), {}, 1));
  EXPECT_EQ(driver.opened, 2);
}

TEST(Mappings, ForgetsWhatTheOwnerReplaced) {
  FakeDriver driver;
  Mappings mappings({}, driver.open, driver.covers);
  ASSERT_TRUE(mappings.get(some_memory(4096, 1), {}, 0));
  ASSERT_TRUE(mappings.get(some_memory(4096, 2), {}, 0));
  EXPECT_EQ(driver.opened, 2);
  EXPECT_EQ(mappings.open_count(), 1u);
  // Part of the old range under another base.
  ASSERT_TRUE(mappings.get(some_memory(6144, 3), {}, 0));
  EXPECT_EQ(mappings.open_count(), 1u);
}

TEST(Mappings, KeepsUsedOnesAndFewOthers) {
  FakeDriver driver;
  Mappings mappings({.count = 2, .bytes = 1 << 20}, driver.open, driver.covers);
  const auto used = mappings.get(some_memory(1 << 20, 1), {}, 0);
  for (std::uint64_t i = 2; i < 10; ++i) ASSERT_TRUE(mappings.get(some_memory(i << 20, i), {}, 0));
  EXPECT_LE(mappings.open_count(), 4u);
  EXPECT_EQ(mappings.get(some_memory(1 << 20, 1), {}, 0)->mapping, used->mapping);
  EXPECT_EQ(driver.opened, 9);
}

// CUDA maps a block of small allocations into a process only once.
TEST(Mappings, MakesRoomForANeighbourInABlock) {
  FakeDriver driver;
  Mappings mappings({}, driver.open, driver.covers);
  ASSERT_TRUE(mappings.get(some_memory(4096, 1), {}, 0));
  const auto used = mappings.get(some_memory(16384, 2), {}, 0);
  EXPECT_EQ(mappings.open_count(), 1u);  // nobody used the first
  ASSERT_TRUE(mappings.get(some_memory(32768, 3), {}, 0));
  EXPECT_EQ(mappings.open_count(), 2u);
  ASSERT_TRUE(mappings.get(some_memory(std::uint64_t{64} << 20, 4), {}, 0));
  EXPECT_EQ(mappings.open_count(), 3u);  // another block
}

TEST(Mappings, NeighboursInABlockShareOne) {
  FakeDriver driver;
  Mappings mappings({}, driver.open, driver.covers);
  const auto first = mappings.get(some_memory(4096, 1), {}, 0);
  const auto second = mappings.get(some_memory(16384, 2), {id_of(4096, 1)}, 0);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->mapping, second->mapping);
  const auto apart = [&](const MappedMemory& one) {
    return reinterpret_cast<std::uint64_t>(one.data) - reinterpret_cast<std::uint64_t>(first->data);
  };
  EXPECT_EQ(apart(*second), 16384u - 4096);
  // Through the second, the first being gone by now.
  const auto third = mappings.get(some_memory(32768, 3), {id_of(16384, 2)}, 0);
  ASSERT_TRUE(third);
  EXPECT_EQ(third->mapping, first->mapping);
  EXPECT_EQ(apart(*third), 32768u - 4096);
  EXPECT_EQ(driver.opened, 1);
  // Known by itself now.
  EXPECT_EQ(mappings.get(some_memory(32768, 3), {}, 0)->mapping, first->mapping);
  // In another block, for another device, of another time: each has to be opened.
  ASSERT_TRUE(mappings.get(some_memory(std::uint64_t{64} << 20, 4), {id_of(4096, 1)}, 0));
  EXPECT_EQ(driver.opened, 2);
  ASSERT_TRUE(mappings.get(some_memory(16384, 2), {id_of(4096, 1)}, 1));
  EXPECT_EQ(driver.opened, 3);
  ASSERT_TRUE(mappings.get(some_memory(40960, 6), {id_of(4096, 5)}, 0));
  EXPECT_EQ(driver.opened, 4);
}

// Unless the driver says that both are one piece of memory.
TEST(Mappings, NeighboursOfOtherMemoryAreOpened) {
  FakeDriver driver;
  Mappings mappings({}, driver.open, [](const std::byte* mapped, const std::byte* data, std::uint64_t) {
    return mapped == data;
  });
  const auto first = mappings.get(some_memory(4096, 1), {}, 0);
  const auto second = mappings.get(some_memory(65536, 7), {id_of(4096, 1)}, 0);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(driver.opened, 2);
}

// What a peer says of its memory has to be true of what its handle opens, and gives it nothing of another's.
TEST(Mappings, RefusesAHandleThatStandsForLess) {
  FakeDriver driver{.covered = false};
  Mappings mappings({}, driver.open, driver.covers);
  const auto mapped = mappings.get(some_memory(4096, 1), {}, 0);
  ASSERT_FALSE(mapped);
  EXPECT_EQ(mapped.error().code, ErrorCode::kProtocol);
  EXPECT_NE(mapped.error().message.find("4096 bytes"), std::string::npos) << mapped.error().message;
  EXPECT_EQ(driver.opened, 1);
  EXPECT_EQ(mappings.open_count(), 0u);
  std::byte here{};
  EXPECT_FALSE(Mappings::driver_covers(&here, &here, 1));  // not the driver's
  EXPECT_FALSE(Mappings::driver_covers(&here, &here, ~std::uint64_t{0}));
  EXPECT_FALSE(Mappings::driver_covers(&here, &here, 0));
}

TEST(Mappings, GivesNobodyAMappingWithoutItsHandle) {
  FakeDriver driver;
  Mappings mappings({}, driver.open, driver.covers);
  const auto first = mappings.get(some_memory(4096, 1), {}, 0);
  SharedMemory other = some_memory(4096, 1);
  other.handle.fill(std::byte{8});
  const auto second = mappings.get(other, {}, 0);
  ASSERT_TRUE(first && second);
  EXPECT_NE(first->mapping, second->mapping);
  EXPECT_EQ(driver.last, other.handle);
  AllocationId neighbour = id_of(std::uint64_t{64} << 20, 2);
  const auto third = mappings.get(some_memory(neighbour.base, neighbour.buffer_id), {}, 0);
  neighbour.handle.fill(std::byte{8});
  const auto fourth = mappings.get(some_memory(neighbour.base + 8192, 3), {neighbour}, 0);
  ASSERT_TRUE(third && fourth);
  EXPECT_NE(third->mapping, fourth->mapping);
}

TEST(Mappings, TheLimitsHoldAlsoForWhatIsUsedNoLonger) {
  FakeDriver driver;
  Mappings mappings({.count = 3, .bytes = 8192}, driver.open, driver.covers);
  std::vector<MappedMemory> used;
  for (std::uint64_t i = 1; i <= 6; ++i) used.push_back(mappings.get(some_memory(i << 30, i), {}, 0).value());
  EXPECT_EQ(mappings.open_count(), 6u);
  used.clear();
  EXPECT_TRUE(testing::eventually([&] { return mappings.open_count() == 2; }));
  SharedMemory large = some_memory(std::uint64_t{9} << 30, 9);
  large.size = 8193;
  EXPECT_TRUE(mappings.get(large, {}, 0));
  EXPECT_TRUE(testing::eventually([&] { return mappings.open_count() == 2; }));
  EXPECT_EQ(driver.opened, 7);
  // The last two that were used are there.
  EXPECT_TRUE(mappings.get(some_memory(std::uint64_t{6} << 30, 6), {}, 0));
  EXPECT_EQ(driver.opened, 7);
}

TEST(Mappings, WhatTheOwnerReplacedIsKeptForItsUsersAlone) {
  FakeDriver driver;
  Mappings mappings({}, driver.open, driver.covers);
  std::optional<MappedMemory> old = mappings.get(some_memory(4096, 1), {}, 0).value();
  const auto renewed = mappings.get(some_memory(4096, 2), {}, 0);
  ASSERT_TRUE(renewed);
  EXPECT_EQ(mappings.open_count(), 2u);
  EXPECT_EQ(mappings.get(some_memory(4096, 2), {}, 0)->mapping, renewed->mapping);
  old.reset();
  EXPECT_TRUE(testing::eventually([&] { return mappings.open_count() == 1; }));
}

// Transfers look mappings up while others are opened, which the driver may take its time for.
TEST(Mappings, LookupsDoNotWaitForTheDriver) {
  FakeDriver driver;
  std::promise<void> go;
  const std::shared_future<void> gone = go.get_future().share();
  std::promise<void> begun;
  const Mappings::Open slow = [&](const cuda::IpcHandle& handle, int device) {
    if (handle[0] == std::byte{8}) {
      begun.set_value();
      gone.wait_for(std::chrono::seconds(60));
    }
    return driver.open(handle, device);
  };
  Mappings mappings({}, slow, driver.covers);
  const auto known = mappings.get(some_memory(4096, 1), {}, 0);
  SharedMemory other = some_memory(std::uint64_t{1} << 30, 2);
  other.handle.fill(std::byte{8});
  auto opening = std::async(std::launch::async, [&] { return mappings.get(other, {}, 0).has_value(); });
  begun.get_future().wait();
  auto found = std::async(std::launch::async, [&] {
    return mappings.get(some_memory(4096, 1), {}, 0)->mapping == known->mapping;
  });
  EXPECT_EQ(found.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  go.set_value();
  EXPECT_TRUE(found.get());
  EXPECT_TRUE(opening.get());
}

TEST(PeerMemory, IsLetGoWhenItIsRetired) {
  FakeDriver driver;
  const auto mappings = std::make_shared<Mappings>(Mappings::Limits{}, driver.open, driver.covers);
  const SharedMemory memory = some_memory(4096, 1);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of the other process
  auto* const base = reinterpret_cast<std::byte*>(4096);
  const RegionInfo part{.id = RegionId{1}, .base = base, .size = 1024};
  const RegionInfo whole{.id = RegionId{2}, .base = base, .size = 4096};
  const PeerMemory peer(part, {.memory = memory}, 0, mappings, false);
  const PeerMemory another(whole, {.memory = memory}, 0, mappings, false);
  ASSERT_TRUE(peer.reach(0));
  ASSERT_TRUE(another.reach(0));
  EXPECT_EQ(driver.opened, 1);
  peer.retire();
  const auto gone = peer.reach(0);
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().code, ErrorCode::kNotFound);
  // The other region of the allocation needs it.
  EXPECT_EQ(mappings->open_count(), 1u);
  EXPECT_TRUE(another.reach(0));
  another.retire();
  EXPECT_TRUE(testing::eventually([&] { return mappings->open_count() == 0; }));
}

// A region that is taken back while it is being mapped is not kept either.
TEST(PeerMemory, IsLetGoWhenItIsRetiredBeforeItIsMapped) {
  FakeDriver driver;
  const PeerMemory* retired = nullptr;
  const Mappings::Open open = [&](const cuda::IpcHandle& handle, int device) {
    retired->retire();
    return driver.open(handle, device);
  };
  const auto mappings = std::make_shared<Mappings>(Mappings::Limits{}, open, driver.covers);
  const RegionInfo region{.id = RegionId{1}, .base = nullptr, .size = 4096};
  SharedMemory memory = some_memory(0, 1);
  const PeerMemory peer(region, {.memory = memory}, 0, mappings, false);
  retired = &peer;
  EXPECT_EQ(peer.reach(0).error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(testing::eventually([&] { return mappings->open_count() == 0; }));
}

TEST(Mappings, PassesOnWhyItCouldNotOpen) {
  Mappings mappings({}, [](const cuda::IpcHandle&, int) -> Result<cuda::IpcMapping> {
    return fail(ErrorCode::kSystem, "no");
  });
  const auto mapping = mappings.get(some_memory(4096, 1), {}, 0);
  ASSERT_FALSE(mapping);
  EXPECT_EQ(mapping.error().message, "no");
  EXPECT_EQ(mappings.open_count(), 0u);
}

}  // namespace
}  // namespace p2p::cuda_ipc
