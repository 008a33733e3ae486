// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// The way through slots, with host memory that is said to be a device's: for a slot they are the same.
// Devices come in tests/conformance and tests/hardware.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "transport/cma/channel.h"
#include "transport/registration.h"

namespace p2p::cma {
namespace {

constexpr std::size_t kSlot = 64;

std::byte* bytes_of(std::string& text) { return reinterpret_cast<std::byte*>(text.data()); }

class CmaStaged : public ::testing::Test {
 protected:
  void SetUp() override { connect(true); }

  /// Two channels of this process, the first of which is asked to copy.
  void connect(bool has_pinned_memory) {
    here_ = open(Role::kConnector, has_pinned_memory);
    there_ = open(Role::kAcceptor, has_pinned_memory);
    ASSERT_TRUE(there_->connect(here_->address()));
    ASSERT_TRUE(here_->connect(there_->address()));
    for (int round = 0; round < 100; ++round) {
      for (Channel* const channel : {here_.get(), there_.get()}) channel->progress(done_);
    }
    ASSERT_EQ(here_->state(), ChannelState::kReady) << here_->error().message;
  }

  static std::unique_ptr<Channel> open(Role role, bool has_pinned_memory) {
    auto pool = std::make_shared<device::StagingPool>(
        device::StagingPool::Limits{.slot_bytes = kSlot},
        [=](std::size_t size, int) -> Result<std::shared_ptr<std::byte>> {
          if (!has_pinned_memory) return fail(ErrorCode::kSystem, "no pinned memory");
          return std::shared_ptr<std::byte>(new std::byte[size], std::default_delete<std::byte[]>());
        });
    auto channel = CmaChannel::open({.role = role},
                                    std::make_shared<device::Staging>(std::move(pool), kStagingShare, true),
                                    PeerAccess(std::make_shared<RegistrationTable>(), ""));
    EXPECT_TRUE(channel) << channel.error().message;
    return *std::move(channel);
  }

  /// Two runs of mine, apart and in turned order over there.
  std::vector<Segment> segments() { return segments(theirs_.data(), key_); }
  std::vector<Segment> segments(const void* there, const RemoteKey& key) {
    const auto address = reinterpret_cast<std::uint64_t>(there);
    return {{bytes_of(mine_) + 1, address + 20, 10, &registration_, &key},
            {bytes_of(mine_) + 30, address + 2, 7, &registration_, &key}};
  }

  static Batch batch_of(std::uint64_t id, Operation operation, std::span<const Segment> segments) {
    return {.id = BatchId{id}, .operation = operation, .segments = segments, .skip = 4, .bytes = 13};
  }

  std::string mine_ = "abcdefghijklmnopqrstuvwxyz0123456789ABCDEF";
  std::string theirs_ = std::string(40, '.');
  Registration registration_{
      {.base = bytes_of(mine_), .size = mine_.size(), .place = {.kind = MemoryKind::kCuda, .device = -1}}};
  RemoteKey key_{RegionInfo{.base = bytes_of(theirs_), .size = theirs_.size()}};
  std::unique_ptr<Channel> here_;
  std::unique_ptr<Channel> there_;
  std::vector<Completion> done_;
};

TEST_F(CmaStaged, IsForBatchesWithDeviceMemoryHere) {
  const Registration host({.base = bytes_of(mine_), .size = 4});
  const std::vector<Segment> list = {{bytes_of(mine_), 0, 2, &host, &key_},
                                     {bytes_of(mine_), 0, 2, &registration_, &key_}};
  EXPECT_FALSE(starts_on_device({.segments = list, .bytes = 2}));
  EXPECT_TRUE(starts_on_device({.segments = list, .bytes = 3}));
}

TEST_F(CmaStaged, WritesAndReadsWhatTheBatchCovers) {
  const auto list = segments();
  ASSERT_TRUE(here_->post(batch_of(1, Operation::kWrite, list)));
  EXPECT_TRUE(here_->busy());
  EXPECT_EQ(theirs_, std::string(40, '.')) << "before the slot was known to be filled";
  EXPECT_TRUE(here_->progress(done_));
  EXPECT_FALSE(here_->busy());
  ASSERT_EQ(done_.size(), 1U);
  EXPECT_TRUE(done_[0].status) << done_[0].status.error().message;
  EXPECT_EQ(theirs_, "..456789A...............fghijk..........");

  theirs_ = "0123456789abcdefghijKLMNOPQRST..........";
  const std::string before = mine_;
  const auto back = segments();
  ASSERT_TRUE(here_->post(batch_of(2, Operation::kRead, back)));
  EXPECT_TRUE(here_->progress(done_));
  ASSERT_EQ(done_.size(), 2U);
  EXPECT_TRUE(done_[1].status) << done_[1].status.error().message;
  EXPECT_EQ(mine_.substr(0, 5), before.substr(0, 5));
  EXPECT_EQ(mine_.substr(5, 6), "OPQRST");
  EXPECT_EQ(mine_.substr(30, 7), "2345678");
  EXPECT_EQ(mine_.substr(37), before.substr(37));
}

// As long as the pool has slots; without, two a direction go on.
TEST_F(CmaStaged, IsFullWithAsManyAsSlotsADirection) {
  const auto list = segments();
  for (const Operation operation : {Operation::kWrite, Operation::kRead}) {
    std::uint64_t taken = 0;
    while (taken <= kStagedBatches && here_->post(batch_of(taken, operation, list))) ++taken;
    EXPECT_EQ(taken, kStagedBatches);
    EXPECT_TRUE(here_->progress(done_));
    EXPECT_EQ(done_.size(), taken);
    EXPECT_TRUE(here_->post(batch_of(taken, operation, list)));
    here_->progress(done_);
    done_.clear();
  }
}

TEST_F(CmaStaged, AnAbandonedWriteIsNotMade) {
  const auto list = segments();
  ASSERT_TRUE(here_->post(batch_of(1, Operation::kWrite, list)));
  here_->abandon(BatchId{1});
  here_->progress(done_);
  ASSERT_EQ(done_.size(), 1U);
  ASSERT_FALSE(done_[0].status);
  EXPECT_EQ(done_[0].status.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(theirs_, std::string(40, '.'));
  ASSERT_TRUE(here_->post(batch_of(2, Operation::kWrite, list)));
  here_->abandon(BatchId{1});
  here_->progress(done_);
  ASSERT_EQ(done_.size(), 2U);
  EXPECT_TRUE(done_[1].status);
}

TEST_F(CmaStaged, WhatCannotBeCopiedFailsAloneAndItsSlotIsFreeAgain) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  auto* const nowhere = reinterpret_cast<std::byte*>(std::uintptr_t{4096});
  const RemoteKey key(RegionInfo{.base = nowhere, .size = theirs_.size()});
  const auto bad = segments(nowhere, key);
  for (std::uint64_t id = 1; id <= 10; ++id) {
    const auto operation = id % 2 == 0 ? Operation::kRead : Operation::kWrite;
    ASSERT_TRUE(here_->post(batch_of(id, operation, bad)));
    here_->progress(done_);
    ASSERT_EQ(done_.size(), id);
    ASSERT_FALSE(done_.back().status);
    EXPECT_THAT(done_.back().status.error().message, ::testing::HasSubstr("Bad address"));
  }
  const auto good = segments();
  ASSERT_TRUE(here_->post(batch_of(11, Operation::kWrite, good)));
  here_->progress(done_);
  EXPECT_TRUE(done_.back().status);
}

TEST_F(CmaStaged, WithoutPinnedMemoryABatchFailsWithTheReason) {
  connect(false);
  const auto list = segments();
  ASSERT_TRUE(here_->post(batch_of(1, Operation::kWrite, list)));
  here_->progress(done_);
  ASSERT_EQ(done_.size(), 1U);
  ASSERT_FALSE(done_[0].status);
  EXPECT_EQ(done_[0].status.error().message, "no pinned memory");
  EXPECT_FALSE(here_->busy());
}

TEST_F(CmaStaged, ThePeersEndIsToldOfEachWriteAndLeavingEndsAll) {
  const auto list = segments();
  ASSERT_TRUE(here_->post(batch_of(1, Operation::kWrite, list)));
  ASSERT_TRUE(here_->post(batch_of(2, Operation::kRead, list)));
  ASSERT_TRUE(dynamic_cast<LeavesPeer&>(*here_).leave().end);
  here_->progress(done_);
  ASSERT_EQ(done_.size(), 2U);
  ASSERT_TRUE(there_->post(batch_of(3, Operation::kWrite, list)));
  here_.reset();
  there_->progress(done_);
  ASSERT_EQ(done_.size(), 3U);
  for (const Completion& completion : done_) {
    ASSERT_FALSE(completion.status);
    EXPECT_EQ(completion.status.error().code, ErrorCode::kPeerGone);
  }
  EXPECT_FALSE(there_->busy());
  EXPECT_EQ(theirs_, std::string(40, '.'));
}

}  // namespace
}  // namespace p2p::cma
