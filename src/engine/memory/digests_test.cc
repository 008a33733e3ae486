// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/memory/digests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <optional>
#include <vector>

#include "base/background.h"
#include "drivers/cuda/memory.h"
#include "p2p/endpoint.h"
#include "support/memory.h"
#include "support/process.h"

namespace p2p {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

class EndpointDigest : public ::testing::Test {
 protected:
  void SetUp() override {
    Options options;
    options.listen_address = "127.0.0.1";
    auto endpoint = Endpoint::create(options);
    ASSERT_TRUE(endpoint) << endpoint.error().message;
    endpoint_.emplace(std::move(*endpoint));
    for (std::size_t at = 0; at < bytes_.size(); ++at) bytes_[at] = static_cast<std::byte>(at * 7 + at / 256);
  }

  MemoryRegion registered(std::byte* data) {
    auto region = endpoint_->register_memory(data, bytes_.size());
    EXPECT_TRUE(region) << region.error().message;
    return std::move(*region);
  }

  std::uint64_t digest(const std::vector<LocalSpan>& spans) {
    auto started = endpoint_->digest(spans);
    EXPECT_TRUE(started) << started.error().message;
    const auto value = started->wait(10s);
    EXPECT_TRUE(value) << value.error().message;
    EXPECT_TRUE(started->done());
    return value.value_or(0);
  }

  std::optional<Endpoint> endpoint_;
  std::vector<std::byte> bytes_ = std::vector<std::byte>(70'001);
};

TEST_F(EndpointDigest, IsThatOfTheBytesInARow) {
  const MemoryRegion region = registered(bytes_.data());
  EXPECT_EQ(digest({region.span()}), p2p::digest(bytes_));
  EXPECT_EQ(digest({region.span(0, 5001), region.span(5001, 0), region.span(5001, 65'000)}),
            p2p::digest(bytes_));
  EXPECT_NE(digest({region.span(5001, 65'000), region.span(0, 5001)}), p2p::digest(bytes_));
  EXPECT_EQ(digest({}), p2p::digest({}));
}

TEST_F(EndpointDigest, RefusesWhatIsNotRegistered) {
  MemoryRegion region = registered(bytes_.data());
  const LocalSpan inside = region.span();
  LocalSpan beyond = inside;
  ++beyond.data;
  const auto outside = endpoint_->digest({{inside, beyond}});
  ASSERT_FALSE(outside);
  EXPECT_EQ(outside.error().code, ErrorCode::kOutOfRange);
  EXPECT_THAT(outside.error().message, HasSubstr("70001 bytes at"));
  region = {};
  const auto gone = endpoint_->digest({{inside}});
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().code, ErrorCode::kNotFound);
}

TEST_F(EndpointDigest, IsTheSameOfTheMemoryOfAGpu) {
  auto gpu = cuda::DeviceBuffer::allocate(0, bytes_.size());
  if (!gpu) GTEST_SKIP() << gpu.error().message;
  ASSERT_TRUE(cuda::copy_now(gpu->data(), bytes_.data(), bytes_.size()));
  const MemoryRegion here = registered(bytes_.data()), there = registered(gpu->data());
  EXPECT_EQ(digest({there.span()}), p2p::digest(bytes_));
  EXPECT_EQ(digest({there.span(0, 4097), there.span(4097, 65'904)}), p2p::digest(bytes_));
  EXPECT_EQ(digest({there.span(0, 4097), here.span(4097, 60'000), there.span(64'097, 5904)}),
            p2p::digest(bytes_))
      << "of both kinds";
  EXPECT_EQ(bytes_in_allocation(bytes_.data()), ~std::uint64_t{0});
  EXPECT_EQ(bytes_in_allocation(gpu->data() + 1) + 1, bytes_in_allocation(gpu->data()));
  EXPECT_GE(bytes_in_allocation(gpu->data()), bytes_.size());
  *gpu = {};
  const auto freed = endpoint_->digest({{there.span()}});
  ASSERT_FALSE(freed);
  EXPECT_EQ(freed.error().code, ErrorCode::kNotFound);
}

/// Pieces of many sizes, of which a share ends in the middle of many.
class DigestsInShares : public ::testing::Test {
 protected:
  DigestsInShares() {
    testing::fill(pages_.bytes(), 5);
    std::size_t size = 1;
    for (std::size_t at = 0; at + size < pages_.bytes().size(); at += size, size = size * 7 % 70'001) {
      ranges_.push_back({pages_.part(at, size), {}});
    }
  }
  ~DigestsInShares() override { others_.stop(); }

  testing::Pages pages_{std::size_t{4} << 20};
  std::vector<engine::Digests::Range> ranges_;
  engine::Digests digests_;
  Background others_{"others", 3, 100ms};
};

TEST_F(DigestsInShares, AreTheSameAsByOneThread) {
  const auto alone = digests_.compute(ranges_);
  ASSERT_TRUE(alone);
  EXPECT_EQ(digests_.compute(ranges_, &others_).value_or(0), *alone);
  const engine::Digests::Range all{pages_.bytes(), {}};
  EXPECT_EQ(digests_.compute({&all, 1}, &others_).value_or(0), p2p::digest(pages_.bytes()));
  EXPECT_EQ(digests_.compute({}, &others_).value_or(0), p2p::digest({}));
}

TEST_F(DigestsInShares, SayThatMemoryIsBadInWhicheverShare) {
  constexpr std::size_t kPart = std::size_t{1} << 20;
  for (const std::size_t at : {3 * kPart, std::size_t{0}}) {
    testing::spoil(pages_.part(at, 4096), testing::Bad::kProtected);
    const auto value = digests_.compute(ranges_, &others_);
    ASSERT_FALSE(value);
    EXPECT_EQ(value.error().code, ErrorCode::kSystem);
  }
}

TEST_F(DigestsInShares, DoNotEndAProgramThatHasHandlersOfItsOwnNow) {
  ASSERT_TRUE(digests_.compute(ranges_));
  testing::spoil(pages_.part(0, 4096), testing::Bad::kProtected);
  const testing::ProcessEnd end = testing::in_child([&] {
    ::signal(SIGSEGV, SIG_DFL);
    return digests_.compute(ranges_) ? 3 : 7;
  });
  EXPECT_EQ(end, testing::ProcessEnd{.code = 7});
}

}  // namespace
}  // namespace p2p
