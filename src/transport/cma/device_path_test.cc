// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// The way through slots, with host memory in the place of a device's: for a slot they are the same. Devices
// come in tests/conformance and tests/hardware.
#include "transport/cma/device_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "base/error.h"
#include "transport/registration.h"

namespace p2p::cma {
namespace {

constexpr std::size_t kSlot = 64;

std::byte* at(std::uint64_t address) { return reinterpret_cast<std::byte*>(address); }
std::byte* bytes_of(std::string& text) { return reinterpret_cast<std::byte*>(text.data()); }

class CmaDevicePath : public testing::Test {
 protected:
  static std::shared_ptr<device::Staging> staging(bool fails = false) {
    auto pool = std::make_shared<device::StagingPool>(
        device::StagingPool::Limits{.slot_bytes = kSlot},
        [fails](std::size_t size, int) -> Result<std::shared_ptr<std::byte>> {
          if (fails) return fail(ErrorCode::kSystem, "no pinned memory");
          return std::shared_ptr<std::byte>(new std::byte[size], std::default_delete<std::byte[]>());
        });
    return std::make_shared<device::Staging>(std::move(pool), DevicePath::kShare, true);
  }

  /// What the channel does; the peer's memory is `theirs_`.
  Status copy(const Batch& batch) {
    ++copies_;
    if (!outcome_) return outcome_;
    batch.for_each_piece([&](const Segment& piece) {
      const bool write = batch.operation == Operation::kWrite;
      std::memcpy(write ? at(piece.remote) : piece.local, write ? piece.local : at(piece.remote), piece.size);
    });
    return {};
  }

  DevicePath::Copy copier() {
    return [this](const Batch& batch) { return copy(batch); };
  }

  /// Two runs of mine, apart and in turned order over there.
  std::vector<Segment> segments() {
    const auto address = reinterpret_cast<std::uint64_t>(theirs_.data());
    return {{bytes_of(mine_) + 1, address + 20, 10, &registration_, &key_},
            {bytes_of(mine_) + 30, address + 2, 7, &registration_, &key_}};
  }

  static Batch batch_of(std::uint64_t id, Operation operation, std::span<const Segment> segments) {
    return {.id = BatchId{id}, .operation = operation, .segments = segments, .skip = 4, .bytes = 13};
  }

  std::string mine_ = "abcdefghijklmnopqrstuvwxyz0123456789ABCDEF";
  std::string theirs_ = std::string(40, '.');
  Registration registration_{{.base = bytes_of(mine_), .size = mine_.size()}};
  RemoteKey key_{RegionInfo{}};
  Status outcome_;
  int copies_ = 0;
  std::vector<Completion> done_;
};

TEST_F(CmaDevicePath, IsForBatchesWithDeviceMemoryHere) {
  std::byte bytes[4];
  const Registration host({.base = bytes, .size = 4});
  const Registration device({.base = bytes, .size = 4, .place = {MemoryKind::kCuda, 0}});
  const std::vector<Segment> list = {{bytes, 0, 2, &host, &key_}, {bytes, 0, 2, &device, &key_}};
  EXPECT_FALSE(starts_on_device({.segments = list, .bytes = 2}));
  EXPECT_TRUE(starts_on_device({.segments = list, .bytes = 3}));
}

TEST_F(CmaDevicePath, WritesAndReadsWhatTheBatchCovers) {
  DevicePath path(staging(), copier(), done_);
  const auto list = segments();
  ASSERT_TRUE(path.post(batch_of(1, Operation::kWrite, list)));
  EXPECT_TRUE(path.busy());
  EXPECT_EQ(copies_, 0) << "before the slot was known to be filled";
  EXPECT_TRUE(path.progress());
  EXPECT_FALSE(path.busy());
  ASSERT_EQ(done_.size(), 1U);
  EXPECT_TRUE(done_[0].status);
  EXPECT_EQ(theirs_, "..456789A...............fghijk..........");

  theirs_ = "0123456789abcdefghijKLMNOPQRST..........";
  const std::string before = mine_;
  ASSERT_TRUE(path.post(batch_of(2, Operation::kRead, list)));
  EXPECT_TRUE(path.progress());
  ASSERT_EQ(done_.size(), 2U);
  EXPECT_TRUE(done_[1].status);
  EXPECT_EQ(mine_.substr(0, 5), before.substr(0, 5));
  EXPECT_EQ(mine_.substr(5, 6), "OPQRST");
  EXPECT_EQ(mine_.substr(30, 7), "2345678");
  EXPECT_EQ(mine_.substr(37), before.substr(37));
}

// As long as the pool has slots; without, two a direction go on.
TEST_F(CmaDevicePath, IsFullWithAsManyAsSlotsADirection) {
  DevicePath path(staging(), copier(), done_);
  const auto list = segments();
  for (const Operation operation : {Operation::kWrite, Operation::kRead}) {
    std::uint64_t taken = 0;
    while (taken <= DevicePath::kSlots && path.post(batch_of(taken, operation, list))) ++taken;
    EXPECT_EQ(taken, DevicePath::kSlots);
    EXPECT_TRUE(path.progress());
    EXPECT_EQ(done_.size(), taken);
    EXPECT_TRUE(path.post(batch_of(taken, operation, list)));
    path.progress();
    done_.clear();
  }
}

TEST_F(CmaDevicePath, AnAbandonedWriteIsNotMade) {
  DevicePath path(staging(), copier(), done_);
  const auto list = segments();
  for (const std::uint64_t id : {1, 2}) ASSERT_TRUE(path.post(batch_of(id, Operation::kWrite, list)));
  path.abandon(BatchId{1});
  path.progress();
  ASSERT_EQ(done_.size(), 2U);
  EXPECT_EQ(done_[0].id, BatchId{1});
  ASSERT_FALSE(done_[0].status);
  EXPECT_EQ(done_[0].status.error().code, ErrorCode::kCancelled);
  EXPECT_TRUE(done_[1].status);
  EXPECT_EQ(copies_, 1);
}

TEST_F(CmaDevicePath, WhatCannotBeCopiedFailsAloneAndItsSlotIsFreeAgain) {
  DevicePath path(staging(), copier(), done_);
  const auto list = segments();
  outcome_ = p2p::fail(ErrorCode::kSystem, "as the test asked");
  for (std::uint64_t id = 1; id <= 10; ++id) {
    const auto operation = id % 2 == 0 ? Operation::kRead : Operation::kWrite;
    ASSERT_TRUE(path.post(batch_of(id, operation, list)));
    path.progress();
    ASSERT_EQ(done_.size(), id);
    ASSERT_FALSE(done_.back().status);
    EXPECT_EQ(done_.back().status.error().message, "as the test asked");
  }
  outcome_ = {};
  ASSERT_TRUE(path.post(batch_of(11, Operation::kWrite, list)));
  path.progress();
  EXPECT_TRUE(done_.back().status);
}

TEST_F(CmaDevicePath, WithoutPinnedMemoryABatchFailsWithTheReason) {
  DevicePath path(staging(true), copier(), done_);
  const auto list = segments();
  ASSERT_TRUE(path.post(batch_of(1, Operation::kWrite, list)));
  ASSERT_EQ(done_.size(), 1U);
  ASSERT_FALSE(done_[0].status);
  EXPECT_EQ(done_[0].status.error().message, "no pinned memory");
  EXPECT_FALSE(path.busy());
}

TEST_F(CmaDevicePath, TheEndOfTheChannelEndsAll) {
  DevicePath path(staging(), copier(), done_);
  const auto list = segments();
  ASSERT_TRUE(path.post(batch_of(1, Operation::kWrite, list)));
  ASSERT_TRUE(path.post(batch_of(2, Operation::kRead, list)));
  path.fail({ErrorCode::kPeerGone, "it died"});
  EXPECT_FALSE(path.busy());
  ASSERT_EQ(done_.size(), 2U);
  for (const Completion& completion : done_) {
    ASSERT_FALSE(completion.status);
    EXPECT_EQ(completion.status.error().code, ErrorCode::kPeerGone);
  }
}

}  // namespace
}  // namespace p2p::cma
