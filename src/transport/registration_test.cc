// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/registration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <thread>
#include <vector>

#include "transport/batch.h"

namespace p2p {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();

RegionInfo region(std::uint32_t id, std::uint64_t base, std::uint64_t size) {
  RegionInfo info{.id = RegionId{id}, .base = reinterpret_cast<std::byte*>(base), .size = size};
  info.key.fill(static_cast<std::byte>(id));
  return info;
}

TEST(Registration, ContainsItsRangeAndNothingElse) {
  const Registration registration(region(1, 0x1000, 0x100));
  EXPECT_TRUE(registration.contains(0x1000, 0x100));
  EXPECT_TRUE(registration.contains(0x10ff, 1));
  EXPECT_TRUE(registration.contains(0x1100, 0));
  EXPECT_FALSE(registration.contains(0x1100, 1));
  EXPECT_FALSE(registration.contains(0xfff, 1));
  EXPECT_FALSE(registration.contains(0xfff, 0));
  EXPECT_FALSE(registration.contains(0x1001, 0x100));
  EXPECT_FALSE(registration.contains(0, 0x2000));
}

TEST(Registration, ContainsDoesNotOverflow) {
  const Registration low(region(1, 0x1000, 0x100));
  EXPECT_FALSE(low.contains(0x1010, kMax - 0xf));
  EXPECT_FALSE(low.contains(kMax, 0x1002));
  const Registration high(region(2, kMax - 0xff, 0xff));
  EXPECT_TRUE(high.contains(kMax - 0xff, 0xff));
  EXPECT_FALSE(high.contains(kMax - 0xff, 0x100));
  EXPECT_FALSE(high.contains(kMax - 1, kMax));
}

TEST(Registration, ExpiresForEveryPeer) {
  RegionInfo info = region(7, 0x1000, 0x100);
  info.restrict_to({.read_only = true, .peers = {"one"}, .expires = std::chrono::hours(1)});
  EXPECT_TRUE(info.expires());
  EXPECT_TRUE(info.check(Operation::kRead, "one"));
  info.expires_at = std::chrono::steady_clock::now();
  EXPECT_THAT(info.check(Operation::kRead, "one").error().message, HasSubstr("region 7: it has expired"));
  EXPECT_THAT(info.check(Operation::kWrite, "one").error().message, HasSubstr("region 7: it has expired"));
  EXPECT_THAT(info.check(Operation::kRead, "two").error().message, HasSubstr("none of them"));
  info.restrict_to({.peers = {}, .expires = std::chrono::nanoseconds::max()});
  EXPECT_TRUE(info.check(Operation::kWrite, "two"));
}

TEST(Registration, NoAccessAfterRevoke) {
  const Registration registration(region(1, 0x1000, 0x100));
  ASSERT_TRUE(AccessGuard(registration));
  registration.revoke();
  EXPECT_FALSE(AccessGuard(registration));
  registration.revoke();
  EXPECT_FALSE(AccessGuard(registration));
}

TEST(Registration, AGuardEndsItsAccessWhereverItGoes) {
  const auto registration = std::make_shared<Registration>(region(1, 0x1000, 0x100));
  {
    AccessGuard first(registration);
    AccessGuard second(std::move(first));
    EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move): it says so
    EXPECT_TRUE(second);
    std::vector<AccessGuard> kept;
    kept.push_back(std::move(second));
    kept.emplace_back(registration);
    kept.front() = AccessGuard(registration);
  }
  registration->revoke();
  EXPECT_TRUE(registration->wait_unaccessed(std::chrono::steady_clock::now()));
  EXPECT_EQ(registration.use_count(), 1);
}

// Counts how often it is asked whether its memory is there.
class Asked : public Registration {
 public:
  Asked(const RegionInfo& info, bool freed) : Registration(info), freed_(freed) {}
  Status check_alive() const override {
    ++times;
    if (!freed_) return {};
    return tl::unexpected<Error>({ErrorCode::kNotFound, "freed"});
  }
  mutable int times = 0;

 private:
  const bool freed_;
};

TEST(Registration, AccessToSeveralIsAllOrNone) {
  const auto good = std::make_shared<Registration>(region(1, 0x1000, 0x100));
  const auto bad = std::make_shared<Registration>(region(2, 0x1000, 0x100));
  std::vector<AccessGuard> guards;
  const std::vector both{good, bad};
  ASSERT_TRUE(begin_accesses(both, guards));
  EXPECT_EQ(guards.size(), 2U);
  guards.clear();
  bad->revoke();
  guards.emplace_back(good);
  const Status refused = begin_accesses(both, guards);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kNotFound);
  EXPECT_NE(refused.error().message.find("region 2"), std::string::npos);
  EXPECT_EQ(guards.size(), 1U);
  guards.clear();
  good->revoke();
}

TEST(Registration, AccessToFreedMemorySaysSo) {
  const std::vector<std::shared_ptr<Registration>> freed{
      std::make_shared<Asked>(region(1, 0x1000, 0x100), true)};
  freed.front()->revoke();
  std::vector<AccessGuard> guards;
  const Status begun = begin_accesses(freed, guards);
  ASSERT_FALSE(begun);
  EXPECT_EQ(begun.error().message, "freed");
  EXPECT_TRUE(guards.empty());
}

// Two threads write through the registration while the owner revokes it and then reads without a lock:
// a missing wait or ordering is a data race that ThreadSanitizer reports, and a changed value here.
TEST(Registration, AccessesEndAfterRevoke) {
  for (int round = 0; round < 200; ++round) {
    std::array<std::uint64_t, 16> lanes{};
    const Registration registration(region(1, 0x1000, 0x100));
    std::atomic<int> started{0};
    const auto access = [&](std::size_t lane) {
      started.fetch_add(1);
      started.notify_all();
      while (const AccessGuard guard{registration}) ++lanes[lane];
    };
    std::thread first(access, std::size_t{0});
    std::thread second(access, std::size_t{8});
    for (int count = started.load(); count < 2; count = started.load()) started.wait(count);
    registration.revoke();
    ASSERT_TRUE(registration.wait_unaccessed(std::chrono::steady_clock::now() + std::chrono::seconds(30)));
    const auto seen = lanes;
    first.join();
    second.join();
    EXPECT_EQ(seen, lanes);
  }
}

// The thread that is to end an access may be the one that asks.
TEST(Registration, AnAccessThatDoesNotEndIsWaitedForNoLongerThanTold) {
  const Registration registration(region(1, 0x1000, 0x100));
  {
    const AccessGuard access(registration);
    ASSERT_TRUE(access);
    registration.revoke();
    EXPECT_FALSE(registration.wait_unaccessed(std::chrono::steady_clock::now()));
    EXPECT_FALSE(
        registration.wait_unaccessed(std::chrono::steady_clock::now() + std::chrono::milliseconds(20)));
  }
  EXPECT_TRUE(registration.wait_unaccessed(std::chrono::steady_clock::now()));
}

TEST(RegistrationTable, FindsByIdKeyAndRange) {
  RegistrationTable table;
  const auto registration = std::make_shared<Registration>(region(7, 0x1000, 0x100));
  table.add(registration);
  table.add(std::make_shared<Registration>(region(8, 0x1000, 0x100)));
  const auto found = table.find(RegionId{7}, registration->info().key, 0x1080, 0x80);
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(*found, registration);
}

TEST(RegistrationTable, SaysWhatIsWrong) {
  RegistrationTable table;
  const RegionInfo info = region(7, 0x1000, 0x100);
  table.add(std::make_shared<Registration>(info));

  const auto unknown = table.find(RegionId{9}, info.key, 0x1000, 1);
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(unknown.error().message, HasSubstr("region 9"));

  for (std::size_t i = 0; i < info.key.size(); ++i) {
    RegionKey key = info.key;
    key[i] ^= std::byte{1};
    const auto forged = table.find(RegionId{7}, key, 0x1000, 1);
    ASSERT_FALSE(forged);
    EXPECT_EQ(forged.error().code, ErrorCode::kPermissionDenied);
    EXPECT_THAT(forged.error().message, HasSubstr("region 7"));
  }

  const auto outside = table.find(RegionId{7}, info.key, 0x10ff, 2);
  ASSERT_FALSE(outside);
  EXPECT_EQ(outside.error().code, ErrorCode::kOutOfRange);
  EXPECT_THAT(outside.error().message, HasSubstr("2 bytes at 0x10ff of region 7"));
  EXPECT_THAT(outside.error().message, HasSubstr("256 bytes at 0x1000"));
}

TEST(RegistrationTable, ForgetsWhatIsRevoked) {
  RegistrationTable table;
  const RegionInfo info = region(7, 0x1000, 0x100);
  table.add(std::make_shared<Registration>(info));
  const auto held = table.find(info.id, info.key, 0x1000, 1);
  ASSERT_TRUE(held);
  table.revoke(**held);
  const auto gone = table.find(info.id, info.key, 0x1000, 1);
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().code, ErrorCode::kNotFound);
  EXPECT_EQ((*held)->info().size, info.size);
  EXPECT_FALSE(AccessGuard(**held));
  table.revoke(**held);
}

// Only to who has the key, and not for ever.
TEST(RegistrationTable, SaysThatMemoryWasFreed) {
  RegistrationTable table;
  const auto error_of = [&](std::uint32_t id, const RegionKey& key) {
    const auto found = table.find(RegionId{id}, key, 0x1000, 1);
    return found ? Error{} : found.error();
  };
  const auto lose = [&](std::uint32_t id) {
    const auto freed = std::make_shared<Asked>(region(id, 0x1000, 0x100), true);
    table.add(freed);
    table.revoke(*freed);
    return freed->info().key;
  };
  const RegionKey key = lose(7);
  EXPECT_EQ(error_of(7, key).code, ErrorCode::kNotFound);
  EXPECT_EQ(error_of(7, key).message, "freed");
  RegionKey wrong = key;
  wrong[0] ^= std::byte{1};
  EXPECT_THAT(error_of(7, wrong).message, HasSubstr("no such region"));
  for (std::uint32_t id = 8; id != 1000; ++id) EXPECT_EQ(error_of(id, lose(id)).message, "freed");
  EXPECT_THAT(error_of(7, key).message, HasSubstr("no such region"));
  const auto again = std::make_shared<Registration>(region(999, 0x1000, 0x100));
  table.add(again);
  EXPECT_TRUE(table.find(RegionId{999}, again->info().key, 0x1000, 1));
}

TEST(RegistrationTable, MayBeUsedByManyThreads) {
  RegistrationTable table;
  const RegionInfo lasting = region(1, 0x1000, 0x100);
  table.add(std::make_shared<Registration>(lasting));
  const auto churn = [&](std::uint32_t first) {
    for (std::uint32_t id = first; id < first + 500; ++id) {
      const RegionInfo info = region(id, 0x2000, 0x100);
      const auto passing = std::make_shared<Registration>(info);
      table.add(passing);
      EXPECT_TRUE(table.find(info.id, info.key, 0x2000, 1));
      EXPECT_TRUE(table.find(lasting.id, lasting.key, 0x1000, 1));
      table.revoke(*passing);
      EXPECT_FALSE(table.find(info.id, info.key, 0x2000, 1));
    }
  };
  std::thread first(churn, 1000U);
  std::thread second(churn, 5000U);
  first.join();
  second.join();
}

TEST(Batch, AsksEachRegionOnceWhetherItsMemoryIsThere) {
  const Asked keys(region(1, 0x10000, 0x1000), false);
  const Asked values(region(2, 0x20000, 0x1000), false);
  const Asked freed(region(3, 0x30000, 0x1000), true);
  std::vector<Segment> segments;
  for (std::uint64_t i = 0; i < 200; ++i) {
    const Asked& turn = i % 2 == 0 ? keys : values;
    segments.push_back({turn.info().base + i, 0, 1, &turn, nullptr});
  }
  EXPECT_TRUE(check_alive({.segments = segments, .bytes = 200}));
  EXPECT_EQ(keys.times, 1);
  EXPECT_EQ(values.times, 1);
  segments.push_back({freed.info().base, 0, 1, &freed, nullptr});
  EXPECT_TRUE(check_alive({.segments = segments, .bytes = 200}));  // ends before that one
  const Status status = check_alive({.segments = segments, .bytes = 201});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message, "freed");
  EXPECT_TRUE(check_alive(Batch{}));
}

}  // namespace
}  // namespace p2p
