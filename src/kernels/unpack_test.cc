// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/unpack.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

namespace p2p::kernels {
namespace {

std::uint64_t between(std::mt19937_64& random, std::uint64_t low, std::uint64_t high) {
  return std::uniform_int_distribution<std::uint64_t>(low, high)(random);
}

std::uint64_t unpack(const std::byte* pool, std::span<const Fragment> fragments,
                     std::span<const Block> blocks) {
  std::vector<CopyBlock> copies;
  const std::uint64_t bytes = plan_unpack(pool, fragments, blocks, copies);
  copy_on_host(copies);
  return bytes;
}

/// Cuts `total` into random pieces of at most `longest`.
std::vector<std::uint64_t> cut(std::uint64_t total, std::uint64_t longest, std::mt19937_64& random) {
  std::vector<std::uint64_t> pieces;
  while (total != 0) {
    pieces.push_back(between(random, 1, std::min(total, longest)));
    total -= pieces.back();
  }
  return pieces;
}

/// A message scattered over a pool, and the blocks it belongs in with a guard byte after each.
struct Scene {
  std::vector<std::byte> message;
  std::vector<std::byte> pool;
  std::vector<Fragment> fragments;
  std::vector<Block> blocks;
  std::vector<std::vector<std::byte>> memory;

  Scene(std::uint64_t size, std::mt19937_64& random) : message(size), pool(3 * size + 4096) {
    for (std::byte& byte : message) byte = static_cast<std::byte>(random());
    std::uint64_t destination = 0;
    for (const std::uint64_t length : cut(size, 9000, random)) {
      fragments.push_back({0, static_cast<std::uint32_t>(length), destination});
      destination += length;
    }
    std::ranges::shuffle(fragments, random);
    std::uint64_t source = 0;
    for (Fragment& fragment : fragments) {
      source += between(random, 0, 1 + fragment.size / 2);
      fragment.source = static_cast<std::uint32_t>(source);
      std::memcpy(&pool.at(source), &message[fragment.destination], fragment.size);
      source += fragment.size;
    }
    std::ranges::shuffle(fragments, random);
    std::uint64_t offset = 0;
    for (const std::uint64_t length : cut(size, between(random, 1, size), random)) {
      memory.emplace_back(length + 1, std::byte{0xa5});
      blocks.push_back({offset, length, memory.back().data()});
      offset += length;
    }
  }
};

TEST(Unpack, PutsRandomFragmentsIntoRandomBlocks) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 300; ++round) {
    Scene scene(between(random, 1, 100000), random);
    ASSERT_TRUE(fills(scene.fragments, scene.message.size()));
    EXPECT_EQ(unpack(scene.pool.data(), scene.fragments, scene.blocks), scene.message.size());
    for (std::size_t index = 0; index < scene.blocks.size(); ++index) {
      const Block& block = scene.blocks[index];
      ASSERT_EQ(std::memcmp(block.data, &scene.message[block.offset], block.size), 0) << "block " << index;
      ASSERT_EQ(scene.memory[index].back(), std::byte{0xa5}) << "byte after block " << index;
    }
  }
}

TEST(Unpack, LeavesOutBytesBetweenBlocks) {
  const std::vector<std::byte> pool(100, std::byte{1});
  std::vector<std::byte> first(10), second(10);
  const std::vector<Fragment> fragments{{0, 100, 0}};
  const std::vector<Block> blocks{{5, 10, first.data()}, {90, 10, second.data()}};
  EXPECT_EQ(unpack(pool.data(), fragments, blocks), 20u);
  EXPECT_EQ(first.back(), std::byte{1});
  EXPECT_EQ(second.back(), std::byte{1});
}

TEST(Unpack, MergesPagesThatLieInARow) {
  const std::vector<std::byte> pool(3 * 4096);
  std::vector<std::byte> target(3 * 4096);
  const std::vector<Fragment> fragments{{0, 4096, 0}, {4096, 4096, 4096}, {8192, 100, 8192}};
  const Block block{0, target.size(), target.data()};
  std::vector<CopyBlock> copies;
  EXPECT_EQ(plan_unpack(pool.data(), fragments, {&block, 1}, copies), 8292u);
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].bytes, 8292u);
}

TEST(Unpack, NothingInNothingOut) {
  EXPECT_TRUE(fills({}, 0));
  EXPECT_EQ(unpack(nullptr, {}, {}), 0u);
}

TEST(Unpack, TellsListsThatDoNotFillTheMessage) {
  const std::vector<Fragment> good{{0, 10, 0}, {10, 10, 10}};
  EXPECT_TRUE(fills(good, 20));
  EXPECT_FALSE(fills(good, 21));
  EXPECT_FALSE(fills(good, 19));
  EXPECT_FALSE(fills(std::vector<Fragment>{{0, 10, ~std::uint64_t{0} - 5}}, 10));
  EXPECT_FALSE(fills(std::vector<Fragment>{{0, 10, 5}}, 10));
}

}  // namespace
}  // namespace p2p::kernels
