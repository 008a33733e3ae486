// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "gpu_pair.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <stdexcept>
#include <utility>

#include "gpu_memory.h"
#include "support/memory.h"
#include "support/peer.h"

namespace p2p::testing {
namespace {

constexpr std::size_t kFirstBytes = 4096;

}  // namespace

std::string GpuConfig::missing() const {
  if (gpu_count() == 0) return "no CUDA device";
  if (two && gpu_count() < 2) return "needs two GPUs";
  return {};
}

void connect(Side& left, Side& right) {
  right.begin("accept");
  const Status connected = status_of(left.call(fmt::format("connect {}", right.port())));
  const Status accepted = status_of(right.finish());
  if (!connected) throw std::runtime_error("connect: " + connected.error().message);
  if (!accepted) throw std::runtime_error("accept: " + accepted.error().message);
}

GpuPair::GpuPair(const SidePlan& plan, const std::string& left_place, const std::string& right_place)
    : left(plan),
      right(plan),
      left_first(left, left_place, kFirstBytes),
      right_first(right, right_place, kFirstBytes) {
  connect(left, right);
}

void GpuTest::SetUp() {
  if (const std::string missing = config().missing(); !missing.empty()) GTEST_SKIP() << missing;
}

GpuPair& GpuTest::pair() {
  static std::map<std::pair<std::string, bool>, std::unique_ptr<GpuPair>> pairs;
  std::unique_ptr<GpuPair>& kept = pairs[{config().transport, config().two}];
  if (!kept || !kept->sound()) kept = own_pair();
  return *kept;
}

std::unique_ptr<GpuPair> GpuTest::own_pair(const SidePlan& plan) const {
  SidePlan over = plan;
  over.transport = config().transport;
  return std::make_unique<GpuPair>(over, config().left_place(), config().right_place());
}

bool GpuTest::widest() const { return config().two || gpu_count() == 1; }

std::string gpu_config_name(const ::testing::TestParamInfo<GpuConfig>& info) {
  return fmt::format("{}_{}", info.param.transport, info.param.two ? "two_gpus" : "same_gpu");
}

std::vector<Block> scattered(std::size_t count, unsigned seed, std::size_t base) {
  std::mt19937 random(seed);
  std::vector<Block> blocks(count);
  std::size_t at = base;
  for (std::size_t i = 0; i < count; ++i) {
    blocks[i].size = i % 50 == 49 ? 10000 + random() % 30000 : 1 + random() % 2000;
    blocks[i].left = at;
    at += blocks[i].size + 1 + random() % 7;
  }
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::shuffle(order, random);
  at = base;
  for (const std::size_t i : order) {
    blocks[i].right = at;
    at += blocks[i].size + 1 + random() % 5;
  }
  return blocks;
}

std::size_t extent_of(const std::vector<Block>& blocks) {
  std::size_t end = 0;
  for (const Block& block : blocks) end = std::max({end, block.left + block.size, block.right + block.size});
  return end;
}

std::vector<Piece> pieces_of(const std::vector<Block>& blocks, const SideMemory& left,
                             const SideMemory& right, std::uint32_t right_id) {
  std::vector<Piece> pieces;
  pieces.reserve(blocks.size());
  for (const Block& block : blocks) {
    pieces.push_back({left.index(), right_id, block.left, right.address(block.right), block.size});
  }
  return pieces;
}

void write_and_read(GpuPair& pair, const std::string& left_place, const std::string& right_place,
                    const std::vector<Block>& blocks, std::size_t base) {
  const std::size_t size = extent_of(blocks) - base;
  const SideMemory left(pair.left, left_place, size, base);
  const SideMemory right(pair.right, right_place, size, base);
  const auto pieces = pieces_of(blocks, left, right, right.imported_by(pair.left));
  std::vector<std::byte> source(left.extent());
  std::vector<std::byte> expected(right.extent(), kUntouched);

  copy_pattern(source, 1, 0);
  left.put(0, source);
  right.set(kUntouched);
  for (const Block& block : blocks) {
    std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(block.left), block.size,
                expected.begin() + static_cast<std::ptrdiff_t>(block.right));
  }
  ASSERT_TRUE(is_ok(pair.left.transfer("write", pieces)));
  EXPECT_TRUE(right.holds(0, expected)) << "written";
  EXPECT_TRUE(left.holds(0, source)) << "the source of a write";

  copy_pattern(source, 2, 0);
  set_all(expected, kUntouched);
  right.put(0, source);
  left.set(kUntouched);
  for (const Block& block : blocks) {
    std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(block.right), block.size,
                expected.begin() + static_cast<std::ptrdiff_t>(block.left));
  }
  ASSERT_TRUE(is_ok(pair.left.transfer("read", pieces)));
  EXPECT_TRUE(left.holds(0, expected)) << "read";
  EXPECT_TRUE(right.holds(0, source)) << "the source of a read";
}

}  // namespace p2p::testing
