// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Batches that the owner of the peer's memory copies, between two channels of this process. Host memory is
// said to be a device's, as in staged_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "transport/cma/owner_copies_testing.h"

namespace p2p::cma::owner_copies_test {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kPiece = 4096;

class CmaOwnerCopies : public ::testing::Test {
 protected:
  void SetUp() override { connect(true); }

  /// Two channels, the first of which posts; the memory of the other's side has two regions.
  void connect(bool with_messages) {
    here_ = open_channel(Role::kConnector, std::make_shared<RegistrationTable>(), pool_);
    there_ = open_channel(Role::kAcceptor, regions_, pool_);
    auto address = Address::parse(here_->address());
    ASSERT_TRUE(address);
    if (!with_messages) address->listener = {};
    ASSERT_TRUE(there_->connect(address->serialize()));
    ASSERT_TRUE(here_->connect(there_->address()));
    settle();
    ASSERT_EQ(here_->state(), ChannelState::kReady) << here_->error().message;
    ASSERT_EQ(there_->state(), ChannelState::kReady) << there_->error().message;
  }

  void settle() {
    for (int round = 0; round != 100; ++round) {
      here_->progress(done_);
      there_->progress(others_done_);
    }
  }

  /// Only this side works.
  void settle_here() {
    for (int round = 0; round != 100; ++round) here_->progress(done_);
  }

  static std::shared_ptr<Registration> add(RegistrationTable& table, RegionInfo info) {
    auto registration = std::make_shared<Registration>(info);
    table.add(registration);
    return registration;
  }

  /// Pieces of the two regions in turns, in scattered order on both sides.
  std::vector<Segment> scattered(std::size_t count, std::size_t size = kPiece) {
    std::vector<Segment> segments;
    for (std::size_t i = 0; i != count; ++i) {
      const std::size_t there = (i * 37) % count;
      const RemoteKey& key = there * kPiece < theirs_.size() / 2 ? first_ : second_;
      segments.push_back({&mine_[(i * 11) % count * kPiece],
                          reinterpret_cast<std::uint64_t>(&theirs_[there * kPiece]), size, &local_, &key});
    }
    return segments;
  }

  Batch batch_of(std::uint64_t id, Operation operation, std::span<const Segment> segments) {
    Batch batch{.id = BatchId{id}, .operation = operation, .segments = segments};
    for (const Segment& segment : segments) batch.bytes += segment.size;
    return batch;
  }

  const Status& only_outcome() {
    EXPECT_EQ(done_.size(), 1U);
    return done_.at(0).status;
  }

  Bytes mine_ = pattern(kMaxBatchBytes, 1);
  Bytes theirs_ = pattern(kMaxBatchBytes, 2);
  const Bytes before_ = theirs_;
  const RegionInfo first_info_ = info_of(1, theirs_.data(), theirs_.size() / 2);
  const RegionInfo second_info_ =
      info_of(2, theirs_.data() + theirs_.size() / 2, theirs_.size() - theirs_.size() / 2);
  const std::shared_ptr<RegistrationTable> regions_ = std::make_shared<RegistrationTable>();
  const std::shared_ptr<Registration> first_there_ = add(*regions_, first_info_);
  const std::shared_ptr<Registration> second_there_ = add(*regions_, second_info_);
  const RemoteKey first_{first_info_};
  const RemoteKey second_{second_info_};
  const Registration local_{as_device_memory(mine_)};
  std::shared_ptr<device::StagingPool> pool_ = plain_pool();
  std::unique_ptr<Channel> here_;
  std::unique_ptr<Channel> there_;
  std::vector<Completion> done_;
  std::vector<Completion> others_done_;
};

TEST_F(CmaOwnerCopies, MovesScatteredPiecesOfSeveralRegionsBothWays) {
  const auto list = scattered(200);
  ASSERT_TRUE(here_->post(batch_of(1, Operation::kWrite, list)));
  settle_here();
  EXPECT_TRUE(done_.empty()) << "the owner has not copied yet";
  EXPECT_EQ(theirs_, before_);
  settle();
  ASSERT_TRUE(only_outcome()) << only_outcome().error().message;
  Bytes expected = before_;
  for (const Segment& piece : list) {
    std::copy_n(piece.local, piece.size,
                expected.data() + (piece.remote - reinterpret_cast<std::uint64_t>(theirs_.data())));
  }
  EXPECT_TRUE(theirs_ == expected);

  done_.clear();
  std::ranges::copy(pattern(theirs_.size(), 3), theirs_.begin());
  expected = mine_;
  for (const Segment& piece : list) {
    std::copy_n(theirs_.data() + (piece.remote - reinterpret_cast<std::uint64_t>(theirs_.data())), piece.size,
                expected.data() + (piece.local - mine_.data()));
  }
  ASSERT_TRUE(here_->post(batch_of(2, Operation::kRead, list)));
  settle();
  ASSERT_TRUE(only_outcome()) << only_outcome().error().message;
  EXPECT_TRUE(mine_ == expected);
  EXPECT_FALSE(here_->busy());
  EXPECT_FALSE(there_->busy());
}

TEST_F(CmaOwnerCopies, AsManyPiecesAsABatchHas) {
  const auto list = scattered(256);
  std::vector<Segment> quarters;
  for (const Segment& piece : list) {
    for (std::size_t i = 0; i != 4; ++i) {
      quarters.push_back({piece.local + i * 1024, piece.remote + i * 1024, 1024, &local_, piece.key});
    }
  }
  ASSERT_EQ(quarters.size(), kMaxBatchSegments);
  ASSERT_TRUE(here_->post(batch_of(1, Operation::kWrite, quarters)));
  settle();
  ASSERT_TRUE(only_outcome()) << only_outcome().error().message;
  for (const Segment& piece : list) {
    const std::size_t at = piece.remote - reinterpret_cast<std::uint64_t>(theirs_.data());
    ASSERT_TRUE(std::equal(piece.local, piece.local + piece.size, theirs_.data() + at)) << at;
  }
}

TEST_F(CmaOwnerCopies, ShortBatchesLeaveTheOwnerAlone) {
  const auto list = scattered(kOwnerPieces - 1, 16);
  ASSERT_TRUE(here_->post(batch_of(1, Operation::kWrite, list)));
  settle_here();
  EXPECT_TRUE(only_outcome());
  const auto more = scattered(kOwnerPieces, 16);
  ASSERT_TRUE(here_->post(batch_of(2, Operation::kWrite, more)));
  settle_here();
  EXPECT_EQ(done_.size(), 1U);
  settle();
  EXPECT_EQ(done_.size(), 2U);
}

TEST_F(CmaOwnerCopies, PartsOfALongRunAreTheOwnersAndAShortOneIsNot) {
  Bytes mine = pattern(kOwnerBytes, 3);
  Bytes theirs(mine.size());
  const RegionInfo info = info_of(3, theirs.data(), theirs.size());
  const auto registered = add(*regions_, info);
  const RemoteKey key(info);
  const Registration local(as_device_memory(mine));
  const auto run = [&](std::uint64_t size) {
    return std::vector<Segment>{
        {mine.data(), reinterpret_cast<std::uint64_t>(theirs.data()), size, &local, &key}};
  };
  constexpr std::uint64_t kPart = kMaxBatchBytes;
  const auto long_run = run(kOwnerBytes);
  const auto short_run = run(kPart);
  const Batch part{.id = BatchId{1}, .segments = long_run, .skip = kPart, .bytes = kPart};
  ASSERT_TRUE(here_->post(part));
  ASSERT_TRUE(here_->post(batch_of(2, Operation::kWrite, short_run)));
  settle_here();
  ASSERT_EQ(done_.size(), 1U);
  EXPECT_EQ(done_[0].id, BatchId{2});
  settle();
  ASSERT_EQ(done_.size(), 2U);
  EXPECT_TRUE(done_[1].status);
  EXPECT_TRUE(std::equal(mine.begin(), mine.begin() + 2 * kPart, theirs.begin()));
}

TEST_F(CmaOwnerCopies, APeerThatTakesNoRequestsIsLeftAlone) {
  connect(false);
  const auto list = scattered(256);
  for (const Operation operation : {Operation::kWrite, Operation::kRead}) {
    done_.clear();
    ASSERT_TRUE(here_->post(batch_of(1, operation, list)));
    settle_here();
    EXPECT_TRUE(only_outcome());
  }
  EXPECT_TRUE(std::equal(mine_.begin(), mine_.begin() + kPiece, theirs_.begin()));
}

TEST_F(CmaOwnerCopies, WhatIsCutSmallIsLeftToOtherChannels) {
  const auto small = scattered(kOwnerPieces);
  ASSERT_TRUE(here_->post(batch_of(1, Operation::kWrite, small)));
  EXPECT_FALSE(here_->post(batch_of(2, Operation::kWrite, small)));
  const auto large = scattered(256);
  std::uint64_t id = 3;
  while (id < 20 && here_->post(batch_of(id, Operation::kWrite, large))) ++id;
  EXPECT_EQ(id, 2 + kStagedBatches);
  settle();
  EXPECT_EQ(done_.size(), kStagedBatches);
  EXPECT_TRUE(here_->post(batch_of(20, Operation::kWrite, small)));
}

TEST_F(CmaOwnerCopies, WhoIsAskedAndWhoIsAnsweredWakesUp) {
  pollfd there{.fd = there_->ready_fd(), .events = POLLIN, .revents = 0};
  pollfd here{.fd = here_->ready_fd(), .events = POLLIN, .revents = 0};
  const auto list = scattered(256);
  for (std::uint64_t round = 1; round != 100; ++round) {
    ASSERT_TRUE(there_->arm_events()) << round;
    ASSERT_TRUE(here_->arm_events()) << round;
    ASSERT_EQ(::poll(&there, 1, 0), 0) << round;
    ASSERT_EQ(::poll(&here, 1, 0), 0) << round;
    ASSERT_TRUE(here_->post(batch_of(round, Operation::kWrite, list)));
    here_->progress(done_);
    ASSERT_EQ(::poll(&there, 1, 0), 1) << round;
    EXPECT_FALSE(there_->enter_polling()) << round;
    for (int turn = 0; turn != 10; ++turn) there_->progress(others_done_);
    ASSERT_EQ(::poll(&here, 1, 0), 1) << round;
    EXPECT_FALSE(here_->enter_polling()) << round;
    settle();
    ASSERT_EQ(done_.size(), round);
  }
}

TEST_F(CmaOwnerCopies, TheOwnerRefusesWhatIsNotThePeersToTouch) {
  const auto refusal = [&](const RegionInfo& claimed, Operation operation = Operation::kWrite) {
    done_.clear();
    const RemoteKey key(claimed);
    auto list = scattered(128);
    for (Segment& piece : list) piece.key = &key;
    EXPECT_TRUE(here_->post(batch_of(7, operation, list)));
    settle();
    EXPECT_FALSE(only_outcome());
    EXPECT_EQ(theirs_, before_);
    return only_outcome() ? Error{} : only_outcome().error();
  };
  RegionInfo all = info_of(1, theirs_.data(), theirs_.size());
  EXPECT_EQ(refusal({.id = RegionId{9}, .key = all.key, .base = all.base, .size = all.size}).code,
            ErrorCode::kNotFound);
  RegionInfo wrong_key = all;
  wrong_key.key.back() ^= std::byte{1};
  EXPECT_EQ(refusal(wrong_key).code, ErrorCode::kPermissionDenied);
  RegionInfo shifted = info_of(2, theirs_.data(), theirs_.size());
  const Error outside = refusal(shifted);
  EXPECT_EQ(outside.code, ErrorCode::kOutOfRange);
  EXPECT_THAT(outside.message, HasSubstr("the peer, which copies: access 4096 bytes at"));
  RegionInfo guarded = info_of(5, theirs_.data(), theirs_.size());
  RegionInfo rights = guarded;
  rights.restrict_to({.read_only = true});
  const auto read_only = add(*regions_, rights);
  EXPECT_EQ(refusal(guarded).code, ErrorCode::kPermissionDenied);
  rights.restrict_to({.peers = {"somebody else"}});
  const auto named = add(*regions_, rights);
  EXPECT_EQ(refusal(guarded, Operation::kRead).code, ErrorCode::kPermissionDenied);
  regions_->revoke(*first_there_);
  EXPECT_EQ(refusal(all).code, ErrorCode::kNotFound);
  EXPECT_EQ(here_->state(), ChannelState::kReady) << "each failed alone";
}

TEST_F(CmaOwnerCopies, AnAbandonedBatchIsNotAskedForOrEndsAsItEnds) {
  const auto list = scattered(256);
  ASSERT_TRUE(here_->post(batch_of(1, Operation::kWrite, list)));
  here_->abandon(BatchId{1});
  settle();
  EXPECT_EQ(only_outcome().error().code, ErrorCode::kCancelled);
  EXPECT_EQ(theirs_, before_);

  done_.clear();
  ASSERT_TRUE(here_->post(batch_of(2, Operation::kWrite, list)));
  here_->progress(done_);
  here_->abandon(BatchId{2});
  settle_here();
  EXPECT_TRUE(done_.empty()) << "the owner may be at it";
  settle();
  EXPECT_TRUE(only_outcome());

  done_.clear();
  const Bytes mine = mine_;
  std::ranges::copy(pattern(theirs_.size(), 4), theirs_.begin());
  ASSERT_TRUE(here_->post(batch_of(3, Operation::kRead, list)));
  here_->abandon(BatchId{3});
  settle();
  EXPECT_EQ(only_outcome().error().code, ErrorCode::kCancelled);
  EXPECT_EQ(mine_, mine);
}

TEST_F(CmaOwnerCopies, WhatCannotBeCopiedFailsAlone) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  auto* const nowhere = reinterpret_cast<std::byte*>(std::uintptr_t{4096});
  const auto gone = add(*regions_, info_of(3, nowhere, kMaxBatchBytes));
  const RemoteKey key(gone->info());
  const std::vector<Segment> bad = {{mine_.data(), 4096, kMaxBatchBytes, &local_, &key}};
  for (std::uint64_t id = 1; id <= 10; ++id) {
    ASSERT_TRUE(here_->post(batch_of(id, id % 2 == 0 ? Operation::kRead : Operation::kWrite, bad)));
    settle();
    ASSERT_EQ(done_.size(), id);
    ASSERT_FALSE(done_.back().status);
    EXPECT_THAT(done_.back().status.error().message, HasSubstr("Bad address"));
  }
  EXPECT_EQ(here_->state(), ChannelState::kReady);
}

TEST_F(CmaOwnerCopies, WhoLeftIsNotCopiedForAndTheSlotStaysUntilTheOwnerIsThrough) {
  const auto list = scattered(256);
  ASSERT_TRUE(here_->post(batch_of(1, Operation::kWrite, list)));
  ASSERT_TRUE(here_->post(batch_of(2, Operation::kRead, list)));
  here_->progress(done_);
  auto end = dynamic_cast<LeavesPeer&>(*here_).leave().end;
  ASSERT_TRUE(end);
  here_->progress(done_);
  ASSERT_EQ(done_.size(), 2U);
  for (const Completion& each : done_) EXPECT_EQ(each.status.error().code, ErrorCode::kPeerGone);
  here_.reset();
  EXPECT_FALSE(end->over());
  // Slots that are free are given to whoever takes one.
  const std::size_t slots = pool_->slots();
  std::vector<std::byte*> free;
  while (const auto slot = pool_->take(false).value()) free.push_back(slot);
  EXPECT_EQ(free.size() + 2, slots);
  for (int round = 0; round != 100; ++round) there_->progress(others_done_);
  EXPECT_EQ(there_->state(), ChannelState::kFailed);
  EXPECT_TRUE(end->over());
  EXPECT_EQ(theirs_, before_);
  end.reset();
  for (int i = 0; i != 2; ++i) {
    auto* const slot = pool_->take(false).value();
    ASSERT_NE(slot, nullptr);
    free.push_back(slot);
  }
  for (auto* const slot : free) pool_->give_back(slot);
}

TEST_F(CmaOwnerCopies, TheOwnersEndIsTheEndOfWhatItWasAskedFor) {
  const auto list = scattered(256);
  ASSERT_TRUE(here_->post(batch_of(1, Operation::kWrite, list)));
  here_->progress(done_);
  there_.reset();
  settle_here();
  EXPECT_EQ(only_outcome().error().code, ErrorCode::kPeerGone);
  EXPECT_EQ(here_->state(), ChannelState::kFailed);
}

}  // namespace
}  // namespace p2p::cma::owner_copies_test
