// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "p2p/weights/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

namespace p2p::weights {
namespace {

using Numbers = std::vector<std::uint64_t>;
using Bytes = std::vector<std::byte>;
using testing::AllOf;
using testing::HasSubstr;

const DType kBf16{"bfloat16", 2};

std::uint32_t tensor(Manifest& manifest, const std::string& name, const Numbers& shape,
                     const DType& dtype = kBf16) {
  return manifest.add_tensor(name, dtype, shape).value();
}

Status shard(Manifest& manifest, std::uint32_t tensor, std::uint32_t rank, const Numbers& offset,
             const Numbers& size) {
  return manifest.add_shard(tensor, {rank, 0, offset, size, {}});
}

std::string refusal(const Manifest& owned, const Manifest& wanted, const std::vector<Rename>& renames = {}) {
  const auto plan = Plan::make(owned, wanted, renames);
  return plan ? "" : plan.error().message;
}

TEST(Manifest, RefusesWhatIsNoTensorOrNotWithinOne) {
  Manifest manifest;
  const auto w = tensor(manifest, "w", {4, 4});
  EXPECT_FALSE(manifest.add_tensor("w", kBf16, Numbers{4}));
  EXPECT_FALSE(manifest.add_tensor("", kBf16, Numbers{4}));
  EXPECT_FALSE(manifest.add_tensor("typeless", {"none", 0}, Numbers{4}));
  EXPECT_FALSE(manifest.add_tensor("deep", kBf16, Numbers(9, 1)));
  EXPECT_FALSE(manifest.add_tensor("huge", kBf16, Numbers{0, 1ULL << 40, 1ULL << 40}));
  EXPECT_THAT(shard(manifest, w, 3, {2, 0}, {3, 4}).error().message,
              AllOf(HasSubstr("'w'"), HasSubstr("rank 3")));
  EXPECT_FALSE(shard(manifest, w, 0, {~0ULL, 0}, {2, 4}));
  EXPECT_FALSE(shard(manifest, w, 0, {0}, {4}));
  EXPECT_EQ(shard(manifest, 7, 0, {0}, {4}).error().code, ErrorCode::kNotFound);
}

TEST(Plan, NamesTheTensorThatDoesNotMeet) {
  Manifest owned, wanted;
  ASSERT_TRUE(shard(owned, tensor(owned, "w", {4, 4}), 0, {0, 0}, {2, 4}));
  const auto w = tensor(wanted, "w", {4, 4});
  ASSERT_TRUE(shard(wanted, w, 0, {0, 0}, {2, 4}));
  EXPECT_EQ(refusal(owned, wanted), "");
  ASSERT_TRUE(shard(wanted, w, 1, {1, 0}, {2, 2}));
  EXPECT_THAT(refusal(owned, wanted),
              AllOf(HasSubstr("'w'"), HasSubstr("2 of 4 elements"), HasSubstr("rank 1")));
  ASSERT_TRUE(shard(owned, 0, 5, {1, 0}, {3, 4}));
  EXPECT_THAT(refusal(owned, wanted), AllOf(HasSubstr("'w'"), HasSubstr("overlaps"), HasSubstr("rank 5")));

  Manifest unknown, other_type, other_shape;
  tensor(unknown, "v", {4, 4});
  EXPECT_THAT(refusal(owned, unknown), HasSubstr("nobody owns 'v'"));
  tensor(other_type, "w", {4, 4}, {"float32", 4});
  EXPECT_THAT(refusal(owned, other_type), AllOf(HasSubstr("bfloat16"), HasSubstr("float32")));
  tensor(other_shape, "w", {4, 5});
  EXPECT_THAT(refusal(owned, other_shape), AllOf(HasSubstr("(4, 4)"), HasSubstr("(4, 5)")));
}

TEST(Plan, RulesFuseAndAreChecked) {
  Manifest owned, wanted;
  for (const char* name : {"q", "k", "v"}) {
    const auto part = tensor(owned, name, {4, 8});
    ASSERT_TRUE(shard(owned, part, part, {0, 0}, {4, 8}));
  }
  ASSERT_TRUE(shard(wanted, tensor(wanted, "qkv", {12, 8}), 0, {3, 0}, {6, 8}));
  const std::vector<Rename> rules{{"qkv", "q"}, {"qkv", "k", {4, 0}}, {"qkv", "v", {8, 0}}};
  const auto plan = Plan::make(owned, wanted, rules);
  ASSERT_TRUE(plan) << plan.error().message;
  ASSERT_EQ(plan->size(), 3U);
  EXPECT_EQ(plan->bytes(), 96U);
  EXPECT_EQ(plan->region(0).source, 48U);  // the last row of q
  EXPECT_EQ(plan->region(2).source_rank, 2U);
  EXPECT_EQ(plan->region(2).target, 80U);

  EXPECT_THAT(refusal(owned, wanted, {rules[0], rules[1]}), HasSubstr("8 of 48 elements"));
  EXPECT_THAT(refusal(owned, wanted, {{"qkv", "q"}, {"qkv", "k", {3, 0}}}), HasSubstr("'q' and 'k' overlap"));
  EXPECT_THAT(refusal(owned, wanted, {{"qkv", "k", {9, 0}}}), HasSubstr("dimension 0"));
  EXPECT_THAT(refusal(owned, wanted, {{"qkv", "k", {9}}}), HasSubstr("dimensions"));
  EXPECT_THAT(refusal(owned, wanted, {{"kv", "k"}}), HasSubstr("not wanted"));
}

TEST(Plan, ARuleTakesAPartOutOfAFusedTensor) {
  Manifest owned, wanted;
  const auto qkv = tensor(owned, "qkv", {12, 8});
  ASSERT_TRUE(shard(owned, qkv, 0, {0, 0}, {6, 8}));
  ASSERT_TRUE(shard(owned, qkv, 1, {6, 0}, {6, 8}));
  ASSERT_TRUE(shard(wanted, tensor(wanted, "k", {4, 8}), 0, {0, 4}, {4, 4}));
  const std::vector<Rename> rules{{"k", "qkv", {}, {4, 0}, {4, 8}}};
  const auto plan = Plan::make(owned, wanted, rules);
  ASSERT_TRUE(plan) << plan.error().message;
  ASSERT_EQ(plan->size(), 2U);
  EXPECT_EQ(plan->region(0).source, 4U * 16 + 8);
  EXPECT_EQ(plan->region(0).bytes(), 16U);
  EXPECT_EQ(plan->region(1).source_rank, 1U);
  EXPECT_EQ(plan->region(1).source, 8U);
  EXPECT_EQ(plan->region(1).target, 16U);
}

TEST(Plan, KeepsAStridedBoxAsOneRegion) {
  Manifest owned, wanted;
  ASSERT_TRUE(shard(owned, tensor(owned, "w", {1000, 1000}), 0, {0, 0}, {1000, 1000}));
  ASSERT_TRUE(shard(wanted, tensor(wanted, "w", {1000, 1000}), 0, {0, 500}, {1000, 500}));
  const auto plan = Plan::make(owned, wanted);
  ASSERT_TRUE(plan);
  ASSERT_EQ(plan->size(), 1U);
  const Region region = plan->region(0);
  EXPECT_EQ(region.source, 1000U);
  EXPECT_EQ(region.run, 1000U);
  ASSERT_EQ(region.depth, 1U);
  EXPECT_EQ(region.levels[0].count, 1000U);
  EXPECT_EQ(region.levels[0].source_stride, 2000);
  EXPECT_EQ(region.levels[0].target_stride, 1000);
}

TEST(Plan, RanksTakeDifferentReplicasWhateverTheOrderTheyWereAddedIn) {
  Manifest owned, other, wanted;
  for (Manifest* manifest : {&owned, &other, &wanted}) tensor(*manifest, "scale", {});
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(shard(owned, 0, rank, {}, {}));
    ASSERT_TRUE(shard(other, 0, 2 - rank, {}, {}));
    ASSERT_TRUE(shard(wanted, 0, rank, {}, {}));
  }
  for (const Manifest* manifest : {&owned, &other}) {
    const auto plan = Plan::make(*manifest, wanted);
    ASSERT_TRUE(plan);
    for (std::uint32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(plan->region(rank).source_rank, rank);
  }
}

/// A random sharding of one tensor, with memory of its own for each shard.
struct Side {
  Manifest manifest;
  std::vector<Bytes> memories;

  std::vector<Numbers> boxes;  // of each shard the offset, then the size
  std::vector<std::vector<std::int64_t>> strides;

  /// Adds the box with its dimensions in any order in memory and gaps between rows.
  void add(const Numbers& offset, const Numbers& size, std::mt19937_64& random) {
    std::vector<std::size_t> order(size.size());
    for (std::size_t d = 0; d < order.size(); ++d) order[d] = d;
    if (random() % 3 == 0) std::ranges::shuffle(order, random);
    std::vector<std::int64_t> stride(size.size());
    std::uint64_t bytes = 2;
    for (const std::size_t d : order) {
      stride[size.size() - 1 - d] = static_cast<std::int64_t>(bytes);
      bytes = bytes * size[size.size() - 1 - d] + (random() % 4 == 0 ? 2 : 0);
    }
    memories.emplace_back(bytes);
    const auto address = reinterpret_cast<std::uint64_t>(memories.back().data());
    ASSERT_TRUE(manifest.add_shard(
        0, {static_cast<std::uint32_t>(memories.size() - 1), address, offset, size, stride}));
    boxes.push_back(offset);
    boxes.back().insert(boxes.back().end(), size.begin(), size.end());
    strides.push_back(stride);
  }

  /// Cuts the box at random, each half again.
  void cut(const Numbers& offset, const Numbers& size, int depth, std::mt19937_64& random) {
    const std::size_t d = random() % size.size();
    if (depth == 0 || size[d] < 2) {
      add(offset, size, random);
      if (random() % 4 == 0) add(offset, size, random);  // a replica
      return;
    }
    Numbers upper = offset, low = size, high = size;
    low[d] = 1 + random() % (size[d] - 1);
    high[d] -= low[d];
    upper[d] += low[d];
    cut(offset, low, depth - 1, random);
    cut(upper, high, depth - 1, random);
  }

  /// Calls `use(index, element)` for each element of each shard, by its index within the whole tensor.
  template <class Use>
  void for_each_element(const Numbers& shape, Use use) {
    const std::size_t dims = shape.size();
    for (std::size_t at = 0; at < memories.size(); ++at) {
      Numbers index(dims, 0);
      for (std::size_t d = 0; d < dims;) {
        std::uint64_t whole = 0;
        std::int64_t place = 0;
        for (std::size_t e = 0; e < dims; ++e) {
          whole = whole * shape[e] + boxes[at][e] + index[e];
          place += static_cast<std::int64_t>(index[e]) * strides[at][e];
        }
        use(static_cast<std::uint16_t>(whole), memories[at].data() + place);
        for (d = 0; d < dims && ++index[d] == boxes[at][dims + d]; ++d) index[d] = 0;
      }
    }
  }
};

void move(const Plan& plan) {
  for (std::size_t at = 0; at < plan.size(); ++at) {
    for_each_run(plan.region(at), [](std::uint64_t source, std::uint64_t target, std::uint64_t bytes) {
      std::memcpy(reinterpret_cast<void*>(target), reinterpret_cast<const void*>(source), bytes);
    });
  }
}

TEST(Plan, EqualsSlicingElementByElementForRandomShardings) {
  for (std::uint64_t seed = 0; seed < 10'000 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    Numbers shape(1 + random() % 4);
    for (std::uint64_t& extent : shape) extent = 1 + random() % 7;
    Side owned, wanted;
    for (Side* side : {&owned, &wanted}) {
      tensor(side->manifest, "w", shape);
      side->cut(Numbers(shape.size(), 0), shape, static_cast<int>(random() % 4), random);
    }
    owned.for_each_element(shape, [](std::uint16_t value, std::byte* at) { std::memcpy(at, &value, 2); });
    wanted.for_each_element(shape, [](std::uint16_t, std::byte* at) { std::memset(at, 0xff, 2); });
    const auto plan = Plan::make(owned.manifest, wanted.manifest);
    ASSERT_TRUE(plan) << plan.error().message;
    move(*plan);
    std::uint64_t elements = 0;
    wanted.for_each_element(shape, [&](std::uint16_t value, const std::byte* at) {
      std::uint16_t got = 0;
      std::memcpy(&got, at, 2);
      if (got != value) ADD_FAILURE() << "element " << value << " is " << got;
      ++elements;
    });
    EXPECT_EQ(plan->bytes(), 2 * elements);
  }
}

}  // namespace
}  // namespace p2p::weights
