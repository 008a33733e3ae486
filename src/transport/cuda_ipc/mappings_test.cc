// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Exported keys, and what becomes of them on the other side.
#include "transport/cuda_ipc/mappings.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "base/error.h"
#include "transport/cuda_ipc/key.h"
#include "transport/cuda_ipc/regions.h"

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
  const auto key =
      decode_key(encode(ExportedKey{.memory = memory, .neighbours = {{5, 6}, {7, 8}}, .refusal = ""}));
  ASSERT_TRUE(key && key->memory);
  EXPECT_EQ(key->memory->owner, memory.owner);
  EXPECT_EQ(key->memory->device, memory.device);
  EXPECT_EQ(key->memory->handle, memory.handle);
  EXPECT_EQ(key->memory->base, memory.base);
  EXPECT_EQ(key->memory->size, memory.size);
  EXPECT_EQ(key->memory->buffer_id, memory.buffer_id);
  EXPECT_EQ(key->neighbours, (std::vector<AllocationId>{{5, 6}, {7, 8}}));
  const auto refused =
      decode_key(encode(ExportedKey{.memory = {}, .neighbours = {}, .refusal = "it was freed"}));
  ASSERT_TRUE(refused);
  EXPECT_FALSE(refused->memory);
  EXPECT_EQ(refused->refusal, "it was freed");
  const auto address = decode_address(encode(ChannelAddress{.process = memory.owner, .probe = memory}));
  ASSERT_TRUE(address && address->probe);
  EXPECT_EQ(address->process, memory.owner);
}

TEST(CudaIpcKey, RefusesWhatItDidNotWrite) {
  const Bytes good =
      encode(ExportedKey{.memory = some_memory(4096, 1), .neighbours = {{1, 2}}, .refusal = ""});
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(decode_key(ByteView(good).first(size))) << size;
  }
  Bytes longer = good;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(decode_key(longer));
  SharedMemory wraps = some_memory(~std::uint64_t{0} - 100, 1);
  EXPECT_FALSE(decode_key(encode(ExportedKey{.memory = wraps, .neighbours = {}, .refusal = ""})));
  EXPECT_FALSE(decode_address(encode(ChannelAddress{.process = {}, .probe = wraps})));
  Bytes other_version = good;
  other_version[0] = std::byte{99};
  EXPECT_EQ(decode_key(other_version).error().code, ErrorCode::kProtocol);
}

struct CountedOpens {
  int opened = 0;
  Mappings::Open open = [this](const cuda::IpcHandle&, int) -> Result<cuda::IpcMapping> {
    ++opened;
    return cuda::IpcMapping();
  };
};

TEST(Mappings, OpensAnAllocationOncePerDevice) {
  CountedOpens opens;
  Mappings mappings({}, opens.open);
  const auto first = mappings.get(some_memory(4096, 1), {}, 0);
  const auto again = mappings.get(some_memory(4096, 1), {}, 0);
  ASSERT_TRUE(first && again);
  EXPECT_EQ(first->mapping, again->mapping);
  EXPECT_EQ(opens.opened, 1);
  ASSERT_TRUE(mappings.get(some_memory(4096, 1), {}, 1));
  EXPECT_EQ(opens.opened, 2);
}

TEST(Mappings, ForgetsWhatTheOwnerReplaced) {
  CountedOpens opens;
  Mappings mappings({}, opens.open);
  ASSERT_TRUE(mappings.get(some_memory(4096, 1), {}, 0));
  const auto renewed = mappings.get(some_memory(4096, 2), {}, 0);
  ASSERT_TRUE(renewed);
  EXPECT_EQ(opens.opened, 2);
  EXPECT_EQ(mappings.open_count(), 1u);
  // Part of the old range under another base.
  ASSERT_TRUE(mappings.get(some_memory(6144, 3), {}, 0));
  EXPECT_EQ(mappings.open_count(), 1u);
}

TEST(Mappings, KeepsUsedOnesAndFewOthers) {
  CountedOpens opens;
  Mappings mappings({.count = 2, .bytes = 1 << 20}, opens.open);
  const auto used = mappings.get(some_memory(1 << 20, 1), {}, 0);
  for (std::uint64_t i = 2; i < 10; ++i) ASSERT_TRUE(mappings.get(some_memory(i << 20, i), {}, 0));
  EXPECT_LE(mappings.open_count(), 4u);
  EXPECT_EQ(mappings.get(some_memory(1 << 20, 1), {}, 0)->mapping, used->mapping);
  EXPECT_EQ(opens.opened, 9);
}

// CUDA maps a block of small allocations into a process only once.
TEST(Mappings, MakesRoomForANeighbourInABlock) {
  CountedOpens opens;
  Mappings mappings({}, opens.open);
  ASSERT_TRUE(mappings.get(some_memory(4096, 1), {}, 0));
  const auto used = mappings.get(some_memory(16384, 2), {}, 0);
  EXPECT_EQ(mappings.open_count(), 1u);  // nobody used the first
  ASSERT_TRUE(mappings.get(some_memory(32768, 3), {}, 0));
  EXPECT_EQ(mappings.open_count(), 2u);
  ASSERT_TRUE(mappings.get(some_memory(std::uint64_t{64} << 20, 4), {}, 0));
  EXPECT_EQ(mappings.open_count(), 3u);  // another block
}

TEST(Mappings, NeighboursInABlockShareOne) {
  CountedOpens opens;
  bool covered = true;
  Mappings mappings({}, opens.open,
                    [&](const std::byte*, const std::byte*, std::uint64_t) { return covered; });
  const auto first = mappings.get(some_memory(4096, 1), {}, 0);
  const auto second = mappings.get(some_memory(16384, 2), {{4096, 1}}, 0);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->mapping, second->mapping);
  const auto apart = [&](const MappedMemory& one) {
    return reinterpret_cast<std::uint64_t>(one.data) - reinterpret_cast<std::uint64_t>(first->data);
  };
  EXPECT_EQ(apart(*second), 16384u - 4096);
  // Through the second, the first being gone by now.
  const auto third = mappings.get(some_memory(32768, 3), {{16384, 2}}, 0);
  ASSERT_TRUE(third);
  EXPECT_EQ(third->mapping, first->mapping);
  EXPECT_EQ(apart(*third), 32768u - 4096);
  EXPECT_EQ(opens.opened, 1);
  // Known by itself now.
  EXPECT_EQ(mappings.get(some_memory(32768, 3), {}, 0)->mapping, first->mapping);
  // In another block, for another device, of another time: each has to be opened.
  ASSERT_TRUE(mappings.get(some_memory(std::uint64_t{64} << 20, 4), {{4096, 1}}, 0));
  EXPECT_EQ(opens.opened, 2);
  ASSERT_TRUE(mappings.get(some_memory(16384, 2), {{4096, 1}}, 1));
  EXPECT_EQ(opens.opened, 3);
  ASSERT_TRUE(mappings.get(some_memory(40960, 6), {{4096, 5}}, 0));
  EXPECT_EQ(opens.opened, 4);
  covered = false;
  ASSERT_TRUE(mappings.get(some_memory(65536, 7), {{4096, 1}}, 0));
  EXPECT_EQ(opens.opened, 5);
}

TEST(PeerMemory, IsLetGoWhenItIsRetired) {
  CountedOpens opens;
  const auto mappings = std::make_shared<Mappings>(Mappings::Limits{}, opens.open);
  const SharedMemory memory = some_memory(4096, 1);
  const RegionInfo region{.id = RegionId{1}, .base = reinterpret_cast<std::byte*>(4096), .size = 4096};
  const PeerMemory peer(region, memory, {}, 0, mappings, false);
  ASSERT_TRUE(peer.reach(0));
  peer.retire();
  const auto gone = peer.reach(0);
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(mappings->get(some_memory(8192, 2), {}, 0));
  EXPECT_EQ(mappings->open_count(), 1u);
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
