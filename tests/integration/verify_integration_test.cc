// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "support/eventually.h"
#include "support/memory.h"
#include "support/peer.h"
#include "support/transports.h"

namespace p2p::testing::verify {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kBlock = 4096;
constexpr std::size_t kSize = std::size_t{2} << 20;
constexpr PostOptions kVerify{.verify = true};

/// One region here and one at the peer, both larger than a batch.
class BothRegions {
 protected:
  explicit BothRegions(const EndpointPlan& plan) : pair_(plan) {}

  void import() {
    fill(own_.pages.bytes(), 7);
    const auto id = pair_.connection.import_region(theirs_.descriptor);
    ASSERT_TRUE(is_ok(status_of(id)));
    id_ = *id;
  }

  RemoteSpan there(std::size_t offset, std::size_t size) const {
    return {id_, theirs_.descriptor.address + offset, size};
  }
  std::string there_text(std::size_t offset) const {
    return fmt::format("at {:#x} of the peer's region", theirs_.descriptor.address + offset);
  }

  Pair pair_;
  OwnRegion own_{pair_.endpoint, 2 * kSize};
  PeerRegion theirs_ = pair_.peer.region(2 * kSize);
  RemoteRegionId id_{};
};

class VerifyTest : public OverTransport, protected BothRegions {
 protected:
  VerifyTest() : BothRegions(plan_over(GetParam())) {}
  void SetUp() override { import(); }
};
P2P_OVER_TRANSPORTS_AND_TLS(VerifyTest);

TEST_P(VerifyTest, WhatHasArrivedIsDone) {
  const auto& connection = pair_.connection;
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, kBlock + 1, kSize + 17}) {
    EXPECT_TRUE(is_ok(connection.write(own_.span(3, size), there(3, size), kVerify).wait(kLimit))) << size;
    EXPECT_TRUE(is_ok(connection.read(own_.span(3, size), there(3, size), kVerify).wait(kLimit))) << size;
  }
  const auto list = connection.prepare_write(std::vector{own_.span(0, kSize)}, std::vector{there(0, kSize)});
  ASSERT_TRUE(is_ok(status_of(list)));
  std::vector<Transfer> transfers;
  for (int i = 0; i != 8; ++i) transfers.push_back(list->post(kVerify));
  for (const Transfer& transfer : transfers) EXPECT_TRUE(is_ok(transfer.wait(kLimit)));
}

TEST_P(VerifyTest, ListsOfManyBlocks) {
  std::vector<LocalSpan> from;
  std::vector<RemoteSpan> to;
  for (std::size_t at = 0; at < kSize; at += 96) {
    from.push_back(own_.span(2 * at, 64));
    to.push_back(there(2 * kSize - 96 - at, 64));
  }
  EXPECT_TRUE(is_ok(pair_.connection.write(from, to, kVerify).wait(kLimit)));
  EXPECT_TRUE(is_ok(pair_.connection.read(from, to, kVerify).wait(kLimit)));
}

// Two sources for one place: whichever landed last, the other one is not there. In one batch, since each is
// compared as soon as it has landed.
TEST_P(VerifyTest, NamesTheRangeThatDiffers) {
  constexpr std::size_t kPart = 32UL << 10;
  std::ranges::copy(own_.part(0, kPart), own_.part(kPart, kPart).begin());
  const std::size_t wrong = 5 * kBlock;
  own_.part(kPart + wrong + 17, 1)[0] ^= std::byte{1};
  const std::vector from{own_.span(0, kPart), own_.span(kPart, kPart)};
  const std::vector to{there(0, kPart), there(0, kPart)};
  const Status written = pair_.connection.write(from, to, kVerify).wait(kLimit);
  ASSERT_TRUE(is_error(written, {ErrorCode::kDataMismatch}));
  EXPECT_THAT(written.error().message, HasSubstr(fmt::format("verify a write of {} bytes", 2 * kPart)));
  EXPECT_THAT(written.error().message, HasSubstr("4096 bytes " + there_text(wrong)));

  ASSERT_TRUE(is_ok(pair_.connection.write(own_.span(0, kPart), there(0, kPart)).wait(kLimit)));
  ASSERT_TRUE(is_ok(pair_.connection.write(own_.span(kPart, kPart), there(kPart, kPart)).wait(kLimit)));
  const std::vector into{own_.span(0, kPart), own_.span(0, kPart)};
  const std::vector out_of{there(0, kPart), there(kPart, kPart)};
  const Status read = pair_.connection.read(into, out_of, kVerify).wait(kLimit);
  ASSERT_TRUE(is_error(read, {ErrorCode::kDataMismatch}));
  EXPECT_THAT(read.error().message, HasSubstr("verify a read"));
  EXPECT_THAT(read.error().message, HasSubstr(fmt::format("byte {} of region", wrong)));
  EXPECT_TRUE(is_ok(pair_.connection.write(own_.span(0, kPart), there(0, kPart), kVerify).wait(kLimit)));
}

TEST_P(VerifyTest, NamesABlockOfAList) {
  std::vector<LocalSpan> from;
  std::vector<RemoteSpan> to;
  for (std::size_t i = 0; i != 100; ++i) {
    from.push_back(own_.span(i * 1000, 500));
    to.push_back(there(i * 1500, 500));
  }
  to[70] = to[30];
  const Status written = pair_.connection.write(from, to, kVerify).wait(kLimit);
  ASSERT_TRUE(is_error(written, {ErrorCode::kDataMismatch}));
  EXPECT_THAT(written.error().message, HasSubstr("500 bytes " + there_text(30UL * 1500)));
}

TEST_P(VerifyTest, WhatAccompaniesItComesBehindIt) {
  PostOptions notifying = kVerify;
  notifying.notification = "verified";
  EXPECT_TRUE(is_ok(pair_.connection.write(own_.span(0, kSize), there(0, kSize), notifying).wait(kLimit)));
  EXPECT_TRUE(is_ok(status_of(pair_.peer.call(fmt::format("notified {} 5000", pair_.at_peer)))));
}

TEST_P(VerifyTest, AnOwnerThatIsGoneEndsIt) {
  std::vector<Transfer> transfers;
  for (int i = 0; i != 64; ++i) {
    transfers.push_back(pair_.connection.write(own_.span(0, kSize), there(0, kSize), kVerify));
  }
  pair_.peer.process().kill_now();
  for (const Transfer& transfer : transfers) {
    if (const Status ended = transfer.wait(kLimit); !ended) {
      EXPECT_TRUE(is_error(ended, {ErrorCode::kPeerGone}));
    }
  }
}

// Those as well that wait for the peer's word of its region.
TEST_P(VerifyTest, ACloseLetsThemFinish) {
  std::vector<Transfer> transfers;
  for (int i = 0; i != 16; ++i) {
    const PostOptions options{.verify = i % 2 == 0};
    transfers.push_back(pair_.connection.write(own_.span(0, kSize), there(0, kSize), options));
  }
  EXPECT_TRUE(is_ok(pair_.connection.close(kLimit)));
  for (const Transfer& transfer : transfers) EXPECT_TRUE(is_ok(transfer.wait(kLimit)));
}

class VerifyOverCma : public ::testing::Test, protected BothRegions {
 protected:
  VerifyOverCma() : BothRegions(plan_over("cma")) {}
  void SetUp() override { import(); }
};
using VerifyTogetherTest = VerifyOverCma;
using VerifyCancelTest = VerifyOverCma;

// While a peer stands still what has landed is asked about together.
TEST_F(VerifyTogetherTest, NobodyFailsForMemoryOfAnother) {
  constexpr std::size_t kTransfers = 40, kBad = 33;  // more than there are questions at a time
  ASSERT_TRUE(is_ok(pair_.connection.wait_imported(id_, kLimit)));
  pair_.peer.process().stop();
  std::vector<Transfer> transfers;
  for (std::size_t i = 0; i != kTransfers; ++i) {
    transfers.push_back(
        pair_.connection.write(own_.span(i * kBlock, kBlock), there(i * kBlock, kBlock), kVerify));
  }
  const auto landed = [&] {
    OwnRegion copy(pair_.endpoint, kBlock);
    for (std::size_t i = 0; i != kTransfers; ++i) {
      if (!pair_.connection.read(copy.span(0, kBlock), there(i * kBlock, kBlock)).wait(kLimit)) return false;
      if (!std::ranges::equal(copy.part(0, kBlock), own_.part(i * kBlock, kBlock))) return false;
    }
    return true;
  };
  ASSERT_TRUE(eventually(landed));
  spoil(own_.part(kBad * kBlock, kBlock), Bad::kProtected);
  pair_.peer.process().go_on();
  for (std::size_t i = 0; i != kTransfers; ++i) {
    const Status ended = transfers[i].wait(kLimit);
    EXPECT_TRUE(i == kBad ? is_error(ended, {ErrorCode::kSystem}) : is_ok(ended)) << i;
  }
}

// What is at the peer already, which does not say what its digest is: nothing moves any more.
TEST_F(VerifyCancelTest, DoesNotWaitForAPeerThatStandsStill) {
  ASSERT_TRUE(is_ok(pair_.connection.write(own_.span(0, kSize), there(0, kSize), kVerify).wait(kLimit)));
  pair_.peer.process().stop();
  std::vector<Transfer> transfers;  // more than there are questions at a time
  constexpr std::size_t kPart = kSize / 16;
  for (std::size_t at = 0; at != kSize; at += kPart) {
    transfers.push_back(pair_.connection.write(own_.span(at, kPart), there(at, kPart), kVerify));
  }
  // Neighbours of the first and the last question go on.
  for (std::size_t i = 0; i != transfers.size(); ++i) {
    if (i % 3 != 1) transfers[i].cancel();
  }
  for (std::size_t i = 0; i != transfers.size(); ++i) {
    if (i % 3 != 1) {
      EXPECT_TRUE(is_error(transfers[i].wait(std::chrono::seconds(10)), {ErrorCode::kCancelled})) << i;
    }
  }
  pair_.peer.process().go_on();
  for (std::size_t i = 1; i < transfers.size(); i += 3) EXPECT_TRUE(is_ok(transfers[i].wait(kLimit))) << i;
  EXPECT_TRUE(is_ok(pair_.connection.write(own_.span(0, kSize), there(0, kSize), kVerify).wait(kLimit)));
  EXPECT_TRUE(is_ok(pair_.connection.status()));
}

}  // namespace
}  // namespace p2p::testing::verify
