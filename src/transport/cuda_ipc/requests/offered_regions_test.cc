// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// What a channel makes of the copies that its peer asks for.
#include "transport/cuda_ipc/requests/offered_regions.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/underlying.h"

namespace p2p::cuda_ipc {
namespace {

constexpr std::size_t kMost = 4;

template <class T>
T through_the_wire(const T& message) {
  auto decoded = decode_message(encode(message));
  EXPECT_TRUE(decoded);
  return std::get<T>(*decoded);
}

class ServedCopiesTest : public ::testing::Test {
 protected:
  ServedCopiesTest() {
    RegionInfo info{.id = RegionId{7}, .key = {std::byte{9}}, .base = memory_, .size = sizeof memory_};
    region_ = std::make_shared<Registration>(info);
    regions_->add(region_);
  }

  static RegionOffer offer() {
    return {.region = RegionId{3}, .base = 4096, .size = 1000, .exported = {std::byte{1}}};
  }

  CopyRequest request(std::uint64_t batch, bool last) const {
    return {.batch = batch,
            .operation = Operation::kWrite,
            .last = last,
            .mine = RegionId{3},
            .regions = {{RegionId{7}, {std::byte{9}}}},
            .pieces = {{reinterpret_cast<std::uint64_t>(memory_) + 8, 4096, 16, 0}}};
  }

  std::unique_ptr<ServedCopy> taken_after(const CopyRequest& wanted) {
    EXPECT_TRUE(offered_.add(offer()));
    import_all();
    EXPECT_TRUE(ask(wanted));
    return served_.take();
  }

  /// As a channel takes it.
  Status ask(const CopyRequest& wanted) {
    auto mine = offered_.find(wanted.mine);
    if (!mine) return tl::unexpected(mine.error());
    return served_.add(wanted, *mine);
  }

  void import_all() {
    for (auto& done : pending_) done(std::make_unique<RemoteKey>(RegionInfo{.size = 1000}));
    pending_.clear();
  }

  std::byte memory_[64] = {};
  std::shared_ptr<Registration> region_;
  std::shared_ptr<RegistrationTable> regions_ = std::make_shared<RegistrationTable>();
  std::vector<OfferedRegions::Imported> pending_;
  OfferedRegions offered_{[this](const RegionInfo&, Bytes, OfferedRegions::Imported done) {
    pending_.push_back(std::move(done));
  }};
  ServedCopies served_{{regions_, ""}, {.batches = 2, .segments = kMost, .bytes = 4096}};
};

TEST_F(ServedCopiesTest, WaitForTheWholeBatchAndItsRegions) {
  ASSERT_TRUE(offered_.add(through_the_wire(offer())));
  ASSERT_TRUE(ask(through_the_wire(request(5, false))));
  EXPECT_FALSE(served_.take());
  ASSERT_TRUE(ask(through_the_wire(request(5, true))));
  EXPECT_FALSE(served_.take()) << "the region is not imported yet";
  EXPECT_FALSE(served_.empty());
  import_all();
  const auto copy = served_.take();
  ASSERT_TRUE(copy);
  EXPECT_TRUE(copy->status);
  EXPECT_EQ(copy->number, 5U);
  EXPECT_EQ(copy->operation, Operation::kRead) << "what the peer writes is read here";
  ASSERT_EQ(copy->segments.size(), 2U);
  EXPECT_EQ(copy->segments[0].local, memory_ + 8);
  EXPECT_EQ(copy->segments[0].remote, 4096U);
  EXPECT_EQ(copy->batch().bytes, 32U);
  EXPECT_TRUE(served_.empty());
}

TEST_F(ServedCopiesTest, AreRefusedWhereThePeerHasNoRight) {
  CopyRequest wrong_key = request(1, true);
  wrong_key.regions[0].key = {};
  const auto refused = taken_after(wrong_key);
  ASSERT_TRUE(refused && !refused->status);
  EXPECT_EQ(refused->status.error().code, ErrorCode::kPermissionDenied);
  EXPECT_TRUE(refused->accesses.empty());
}

TEST_F(ServedCopiesTest, AreRefusedBeyondTheRegion) {
  CopyRequest beyond = request(1, true);
  beyond.pieces[0].size = 57;
  const auto refused = taken_after(beyond);
  ASSERT_TRUE(refused && !refused->status);
  EXPECT_EQ(refused->status.error().code, ErrorCode::kOutOfRange);
}

TEST_F(ServedCopiesTest, AreRefusedOnceTheRegionIsGone) {
  regions_->revoke(*region_);
  const auto refused = taken_after(request(1, true));
  ASSERT_TRUE(refused && !refused->status);
  EXPECT_EQ(refused->status.error().code, ErrorCode::kNotFound);
}

TEST_F(ServedCopiesTest, SayWhyThePeersRegionCannotBeUsed) {
  ASSERT_TRUE(offered_.add(offer()));
  ASSERT_TRUE(ask(request(1, true)));
  pending_[0](fail(ErrorCode::kUnavailable, "no such GPU here"));
  const auto refused = served_.take();
  ASSERT_TRUE(refused && !refused->status);
  EXPECT_EQ(refused->status.error().message, "no such GPU here");
}

// As a region of the peer's, with nothing to wait for.
TEST_F(ServedCopiesTest, NameMemoryThatWasLentToThePeer) {
  const std::shared_ptr<const RemoteKey> lent = std::make_shared<RemoteKey>(RegionInfo{.size = 1000});
  ASSERT_TRUE(offered_.add_leased(RegionId{3}, lent));
  ASSERT_TRUE(ask(request(1, true)));
  const auto copy = served_.take();
  ASSERT_TRUE(copy && copy->status);
  EXPECT_EQ(copy->segments.at(0).key, lent.get());
}

TEST_F(ServedCopiesTest, MixedUpOrEndlessRequestsBreakTheProtocol) {
  EXPECT_FALSE(ask(request(1, true))) << "of a region that was not offered";
  ASSERT_TRUE(offered_.add(offer()));
  ASSERT_TRUE(ask(request(1, false)));
  EXPECT_FALSE(ask(request(2, false)));
  CopyRequest endless = request(1, false);
  endless.pieces.resize(kMost, endless.pieces[0]);
  EXPECT_FALSE(ask(endless));
}

TEST_F(ServedCopiesTest, MoreThanAnHonestPeerAsksForBreaksTheProtocol) {
  ASSERT_TRUE(offered_.add(offer()));
  CopyRequest big = request(1, true);
  big.pieces[0].size = 4097;
  EXPECT_FALSE(ask(big));
  ServedCopies fresh{{regions_, ""}, {.batches = 2, .segments = kMost, .bytes = 4096}};
  ASSERT_TRUE(fresh.add(request(1, true)));
  EXPECT_FALSE(fresh.add(request(1, true))) << "twice";
  ASSERT_TRUE(fresh.add(request(2, true)));
  EXPECT_FALSE(fresh.add(request(3, true)));
  EXPECT_TRUE(fresh.take()->status) << "by addresses alone";
}

TEST_F(ServedCopiesTest, OfARegionTakenBackAreUnknown) {
  ASSERT_TRUE(offered_.add(offer()));
  offered_.remove(through_the_wire(RegionWithdrawn{RegionId{3}}).region);
  EXPECT_FALSE(ask(request(1, true)));
}

TEST(CudaIpcMessages, SurviveTheWireAndNothingElseDoes) {
  const auto good = through_the_wire(CopyOutcome{4, {}});
  EXPECT_EQ(good.batch, 4U);
  EXPECT_TRUE(good.status);
  const auto bad = through_the_wire(CopyOutcome{5, fail(ErrorCode::kNotFound, "it was freed")});
  ASSERT_FALSE(bad.status);
  EXPECT_EQ(bad.status.error().code, ErrorCode::kNotFound);
  EXPECT_NE(bad.status.error().message.find("it was freed"), std::string::npos);

  const RingOffer ring = through_the_wire(
      RingOffer{.region = RegionId{6}, .ring = 7, .token = {std::byte{8}}, .has_words = true, .words = 9});
  EXPECT_EQ(ring.region, RegionId{6});
  EXPECT_EQ(ring.ring, 7U);
  EXPECT_EQ(ring.token[0], std::byte{8});
  EXPECT_TRUE(ring.has_words);
  EXPECT_EQ(ring.words, 9U);
  through_the_wire(Look{});
  EXPECT_TRUE(through_the_wire(TwinMet{.linked = true}).linked);
  EXPECT_FALSE(through_the_wire(TwinMet{.linked = false}).linked);

  const CopyRequest request{
      .batch = 1, .operation = Operation::kRead, .regions = {{}}, .pieces = {{1, 2, 3, 0}, {4, 5, 6, 0}}};
  const CopyRequest read = through_the_wire(request);
  EXPECT_EQ(read.operation, Operation::kRead);
  ASSERT_EQ(read.pieces.size(), 2U);
  EXPECT_EQ(read.pieces[1].mine, 5U);
  const Bytes bytes = encode(request);
  EXPECT_FALSE(decode_message(ByteView(bytes).first(bytes.size() - 1)));
  EXPECT_FALSE(decode_message({}));
  EXPECT_FALSE(decode_message(encode(CopyRequest{.regions = {{}}, .pieces = {{1, 2, 0, 0}}})))
      << "an empty piece";
  EXPECT_FALSE(decode_message(encode(RegionOffer{.base = ~std::uint64_t{0}, .size = 2}))) << "wraps around";
}

}  // namespace
}  // namespace p2p::cuda_ipc
