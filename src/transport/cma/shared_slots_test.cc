// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Two PID namespaces, of which neither side reaches the other's memory: a channel, and a peer that speaks to
// it by hand. scripts/test_netns.sh has real ones.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>

#include "transport/cma/apart_testing.h"

namespace p2p::cma {
namespace {

using ::testing::HasSubstr;

using CmaSharedSlots = Apart;

TEST_F(CmaSharedSlots, AWriteAndAReadGoThroughASlot) {
  connect();
  ASSERT_EQ(channel_->state(), ChannelState::kReady) << channel_->error().message;
  EXPECT_THAT(channel_->describe(), HasSubstr("another PID namespace, through shared memory"));
  const CopyRequest written = post(Operation::kWrite);
  EXPECT_EQ(written.pieces.at(0).theirs, 0x10000U);
  ServedCopy copy{.operation = Operation::kRead};
  Bytes came(kBytes);
  copy.segments = {{.local = came.data(), .remote = written.pieces.at(0).mine, .size = kBytes}};
  std::optional<Error> breach;
  ASSERT_TRUE(slots_.serve(copy, breach));
  EXPECT_EQ(came, before_);
  say(encode(CopyOutcome{written.batch, {}}));
  ASSERT_EQ(done_.size(), 1U);
  EXPECT_TRUE(done_.front().status);
  done_.clear();
  Bytes other = pattern(kBytes, 8);
  const CopyRequest read = post(Operation::kRead);
  copy.operation = Operation::kWrite;
  copy.segments = {{.local = other.data(), .remote = read.pieces.at(0).mine, .size = kBytes}};
  ASSERT_TRUE(slots_.serve(copy, breach));
  say(encode(CopyOutcome{read.batch, {}}));
  ASSERT_EQ(done_.size(), 1U);
  EXPECT_TRUE(done_.front().status);
  EXPECT_EQ(memory_, other);
}

/// Memory that is freed after a batch has begun.
class Freed : public Registration {
 public:
  using Registration::Registration;
  Status check_alive() const override { return freed ? fail(ErrorCode::kNotFound, "freed") : Status{}; }
  bool freed = false;
};

TEST_F(CmaSharedSlots, MemoryThatWasFreedMeanwhileIsNotWritten) {
  connect();
  Freed local{info_};
  const std::vector<Segment> segments{{memory_.data(), 0x10000, kBytes, &local, &key_}};
  ASSERT_TRUE(channel_->post({BatchId{4}, Operation::kRead, segments, 0, kBytes}));
  turns();
  const CopyRequest read = hear<CopyRequest>();
  local.freed = true;
  say(encode(CopyOutcome{read.batch, {}}));
  ASSERT_EQ(done_.size(), 1U);
  EXPECT_EQ(done_.front().status.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(memory_, before_) << "it may be another's by now";
}

TEST_F(CmaSharedSlots, WhatTheFileRefusesIsNoBadMemory) {
  UniqueFd file = UniqueFd::of(::memfd_create, "p2p-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(::ftruncate(file.get(), 2 * SharedSlots::kBytes), 0);
  ASSERT_EQ(::fcntl(file.get(), F_ADD_SEALS, F_SEAL_WRITE), 0);
  SharedSlots slots(std::move(file), 0, true);
  const Status moved =
      slots.move(slots.take(), {BatchId{4}, Operation::kWrite, segments_, 0, kBytes}, nullptr, true);
  ASSERT_FALSE(moved);
  EXPECT_EQ(moved.error().code, ErrorCode::kPermissionDenied);
  EXPECT_THAT(moved.error().message, HasSubstr("shared slot"));
}

TEST_F(CmaSharedSlots, NoMoreBatchesThanSlots) {
  connect();
  for (std::size_t i = 0; i != SharedSlots::kSlots; ++i) {
    EXPECT_TRUE(channel_->post({BatchId{i}, Operation::kWrite, segments_, 0, kBytes}));
  }
  EXPECT_FALSE(channel_->post({BatchId{99}, Operation::kWrite, segments_, 0, kBytes}));
  turns();
  say(encode(CopyOutcome{2, fail(ErrorCode::kPermissionDenied, "no")}));
  ASSERT_EQ(done_.size(), 1U);
  EXPECT_EQ(done_.front().status.error().code, ErrorCode::kPermissionDenied);
  EXPECT_TRUE(channel_->post({BatchId{99}, Operation::kWrite, segments_, 0, kBytes}));
}

TEST_F(CmaSharedSlots, ThePeerGetsWhatItMayHaveAndGivesWhatItMay) {
  connect();
  Bytes bytes = pattern(128, 5);
  Batch batch{};
  const std::vector<Segment> from{{.local = bytes.data(), .size = 128}};
  batch.segments = from;
  batch.bytes = 128;
  const std::int64_t slot = slots_.take();
  ASSERT_TRUE(slots_.move(slot, batch, nullptr, true));
  say(encode(request(Operation::kWrite, static_cast<std::uint64_t>(slot))));
  EXPECT_TRUE(hear<CopyOutcome>().status);
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.begin() + 100, memory_.begin() + 5));
  EXPECT_TRUE(std::equal(bytes.begin() + 100, bytes.end(), memory_.begin() + 500));
  memory_ = before_;
  CopyRequest denied = request(Operation::kWrite, 0);
  denied.regions[0].key = {};
  say(encode(denied));
  EXPECT_EQ(hear<CopyOutcome>().status.error().code, ErrorCode::kPermissionDenied);
  EXPECT_EQ(memory_, before_);
}

TEST_F(CmaSharedSlots, WhatLiesOutsideThePeersSlotsEndsTheChannel) {
  CopyRequest apart = request(Operation::kWrite, 0);
  apart.pieces[1].mine += 64;
  for (const CopyRequest& bad : {request(Operation::kWrite, SharedSlots::kBytes - 127),
                                 request(Operation::kRead, SharedSlots::kBytes + 1), apart}) {
    connect();
    say(encode(bad));
    EXPECT_EQ(channel_->state(), ChannelState::kFailed);
    EXPECT_THAT(channel_->error().message, HasSubstr("do not lie together in its slots"));
    EXPECT_EQ(memory_, before_);
  }
}

TEST_F(CmaSharedSlots, WhoDoesNotKnowTheSecretIsNobody) {
  connect(std::byte{8});
  EXPECT_EQ(channel_->state(), ChannelState::kConnecting);
}

TEST_F(CmaSharedSlots, ProcessesMeetInOneFolderOnly) {
  const Host with = *Host::here(place_);
  Host other = with;
  EXPECT_TRUE(with.meets(other));
  ++other.pid_namespace;
  EXPECT_TRUE(with.meets(other));
  ++other.place;
  EXPECT_THAT(with.meets(other).error().message, HasSubstr("not the same folder"));
  EXPECT_THAT(with.meets(*Host::here()).error().message, HasSubstr("UCCL_P2P_SOCKET_DIR"));
}

}  // namespace
}  // namespace p2p::cma
