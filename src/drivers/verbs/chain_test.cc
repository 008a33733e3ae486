// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// How extents become requests, requests chains, and chains doorbells.
#include "drivers/verbs/chain.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

#include "drivers/verbs/memory.h"
#include "drivers/verbs/testing/fake_provider.h"

namespace p2p::verbs {
namespace {

using testing::FakeProvider;

/// Two connected queue pairs of one device, and registered memory.
class ChainTest : public ::testing::Test {
 protected:
  struct End {
    std::unique_ptr<CompletionQueue> queue;
    std::unique_ptr<QueuePair> pair;
  };

  void SetUp() override {
    device_ = Device::open(provider_.library(), "fake0").value();
    for (End& end : ends_) {
      end.queue = CompletionQueue::open(device_, 256).value();
      end.pair = QueuePair::open(device_, *end.queue, 1, kWanted).value();
    }
    for (std::size_t i = 0; i < 2; ++i) {
      ASSERT_TRUE(ends_[i].pair->connect({.peer_number = ends_[1 - i].pair->number()}));
    }
    local_.resize(1 << 16);
    remote_.resize(1 << 16);
    for (std::size_t i = 0; i < local_.size(); ++i) local_[i] = static_cast<std::byte>(i * 7);
    local_region_ = MemoryRegion::add(device_, local_.data(), local_.size()).value();
    remote_region_ = MemoryRegion::add(device_, remote_.data(), remote_.size()).value();
  }

  Extent extent(std::size_t local, std::size_t remote, std::size_t size) {
    return {local_.data() + local, reinterpret_cast<std::uint64_t>(remote_.data()) + remote,
            static_cast<std::uint32_t>(size), local_region_.local_key(), remote_region_.remote_key()};
  }

  std::vector<WorkCompletion> poll() {
    std::vector<WorkCompletion> completions(32);
    completions.resize(ends_[0].queue->poll(completions).value());
    return completions;
  }

  static constexpr QueuePairLimits kWanted{.requests = 128, .receives = 4, .pieces = 4, .inline_bytes = 256};

  FakeProvider provider_{{.inline_bytes = 64}};
  std::shared_ptr<Device> device_;
  std::array<End, 2> ends_;
  std::vector<std::byte> local_;
  std::vector<std::byte> remote_;
  MemoryRegion local_region_;
  MemoryRegion remote_region_;
};

TEST_F(ChainTest, TheInlineSizeIsWhatTheDeviceGrants) {
  EXPECT_EQ(ends_[0].pair->limits().inline_bytes, 64U);
  EXPECT_EQ(ends_[0].pair->limits().pieces, 4U);
}

TEST_F(ChainTest, OneDoorbellAndOneCompletionForAll) {
  Chain chain(64, ends_[0].pair->limits());
  for (std::size_t i = 0; i < 64; ++i) {
    ASSERT_TRUE(chain.add(Verb::kWrite, extent(i * 512, (63 - i) * 512, 300)));
  }
  EXPECT_FALSE(chain.add(Verb::kWrite, extent(0, 40'000, 300)));
  ASSERT_TRUE(chain.post(*ends_[0].pair, 1000));
  EXPECT_EQ(chain.size(), 0U);
  EXPECT_EQ(provider_.counts().doorbells, 1U);
  EXPECT_EQ(provider_.counts().requests, 64U);
  const auto completions = poll();
  ASSERT_EQ(completions.size(), 1U);
  EXPECT_EQ(completions[0].id, 1063U);
  EXPECT_EQ(completions[0].outcome, Outcome::kDone);
  for (std::size_t i = 0; i < 64; ++i) {
    EXPECT_EQ(std::memcmp(remote_.data() + (63 - i) * 512, local_.data() + i * 512, 300), 0) << i;
  }
}

TEST_F(ChainTest, NeighboursOnBothSidesAreOnePiece) {
  Chain chain(8, ends_[0].pair->limits());
  for (std::size_t i = 0; i < 20; ++i) {
    ASSERT_TRUE(chain.add(Verb::kRead, extent(100 + i * 100, 5000 + i * 100, 100)));
  }
  ASSERT_TRUE(chain.post(*ends_[0].pair, 1));
  EXPECT_EQ(provider_.counts().requests, 1U);
  EXPECT_EQ(provider_.counts().pieces, 1U);
}

TEST_F(ChainTest, LocalPiecesOfOneRemoteRunShareARequest) {
  Chain chain(8, ends_[0].pair->limits());
  for (std::size_t i = 0; i < 10; ++i) {
    ASSERT_TRUE(chain.add(Verb::kWrite, extent(i * 1000, 2000 + i * 100, 100)));
  }
  ASSERT_TRUE(chain.post(*ends_[0].pair, 1));
  EXPECT_EQ(provider_.counts().requests, 3U) << "four pieces a request";
  EXPECT_EQ(provider_.counts().pieces, 10U);
  for (std::size_t i = 0; i < 10; ++i) {
    EXPECT_EQ(std::memcmp(remote_.data() + 2000 + i * 100, local_.data() + i * 1000, 100), 0) << i;
  }
}

TEST_F(ChainTest, WhatLiesApartAtThePeerIsNotJoined) {
  Chain chain(8, ends_[0].pair->limits());
  ASSERT_TRUE(chain.add(Verb::kWrite, extent(0, 0, 100)));
  ASSERT_TRUE(chain.add(Verb::kWrite, extent(100, 101, 100)));
  ASSERT_TRUE(chain.add(Verb::kRead, extent(400, 201, 100)));
  Extent other_key = extent(500, 301, 100);
  other_key.remote_key = local_region_.remote_key();
  ASSERT_TRUE(chain.add(Verb::kRead, other_key));
  EXPECT_EQ(chain.size(), 4U);
}

TEST_F(ChainTest, ASealKeepsNeighboursApart) {
  Chain chain(8, ends_[0].pair->limits());
  ASSERT_TRUE(chain.add(Verb::kWrite, extent(0, 0, 100)));
  chain.seal();
  ASSERT_TRUE(chain.add(Verb::kWrite, extent(100, 100, 100)));
  ASSERT_TRUE(chain.add(Verb::kWrite, extent(200, 200, 100)));
  EXPECT_EQ(chain.size(), 2U);
}

TEST_F(ChainTest, OnlySmallWritesAreCarriedInline) {
  Chain chain(8, ends_[0].pair->limits());
  ASSERT_TRUE(chain.add(Verb::kWrite, extent(0, 0, 64)));
  ASSERT_TRUE(chain.add(Verb::kWrite, extent(100, 100, 65)));
  ASSERT_TRUE(chain.add(Verb::kRead, extent(1000, 200, 8)));
  ASSERT_TRUE(chain.post(*ends_[0].pair, 1));
  EXPECT_EQ(provider_.counts().carried, 1U);
  EXPECT_EQ(std::memcmp(remote_.data() + 100, local_.data() + 100, 65), 0);
}

TEST_F(ChainTest, AProbeTakesNoMemoryAndEnds) {
  Chain chain(8, ends_[0].pair->limits());
  ASSERT_TRUE(chain.add_probe());
  ASSERT_TRUE(chain.post(*ends_[0].pair, 77));
  const auto completions = poll();
  ASSERT_EQ(completions.size(), 1U);
  EXPECT_EQ(completions[0].id, 77U);
  EXPECT_EQ(completions[0].outcome, Outcome::kDone);
}

TEST_F(ChainTest, AWrongKeyEndsThePair) {
  Chain chain(8, ends_[0].pair->limits());
  Extent wrong = extent(200, 200, 100);
  wrong.remote_key += 1000;
  ASSERT_TRUE(chain.add(Verb::kWrite, extent(0, 0, 100)));
  ASSERT_TRUE(chain.add(Verb::kWrite, wrong));
  ASSERT_TRUE(chain.add(Verb::kWrite, extent(400, 400, 100)));
  ASSERT_TRUE(chain.post(*ends_[0].pair, 10));
  const auto completions = poll();
  ASSERT_EQ(completions.size(), 2U);
  EXPECT_EQ(completions[0].id, 11U);
  EXPECT_EQ(completions[0].outcome, Outcome::kRemoteAccess);
  EXPECT_EQ(completions[1].id, 12U);
  EXPECT_EQ(completions[1].outcome, Outcome::kFlushed);
  EXPECT_EQ(remote_[450], std::byte{}) << "what follows the failure is not done";
}

TEST_F(ChainTest, AFullQueueIsAnError) {
  provider_.hold();
  Chain chain(100, ends_[0].pair->limits());
  for (int round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < 100; ++i) ASSERT_TRUE(chain.add(Verb::kWrite, extent(i * 512, i * 512, 400)));
    const Status posted = chain.post(*ends_[0].pair, 1);
    EXPECT_EQ(posted.has_value(), round == 0);
    if (!posted) {
      EXPECT_NE(posted.error().message.find("fake0:1"), std::string::npos) << posted.error().message;
    }
  }
  EXPECT_TRUE(provider_.counts().overrun);
  provider_.release();
}

}  // namespace
}  // namespace p2p::verbs
