// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/memory/region_watch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "support/eventually.h"
#include "support/plain_transport.h"

namespace p2p::engine {
namespace {

using testing::eventually;

/// Memory that is whole until the test says otherwise.
class Fragile : public Registration {
 public:
  using Registration::Registration;
  Status check_whole() const override {
    ++looks;
    if (!broken) return {};
    return fail(ErrorCode::kNotFound, "other memory is mapped there now");
  }
  std::atomic<bool> broken{false};
  mutable std::atomic<int> looks{0};
};

class FragileTransport : public p2p::testing::PlainTransport {
 public:
  FragileTransport() : PlainTransport("fragile") {}

  Result<std::shared_ptr<Registration>> register_memory(const RegionInfo& region) override {
    last = std::make_shared<Fragile>(region);
    return last;
  }

  std::shared_ptr<Fragile> last;
};

/// A peer that lets go as soon as it is told.
class Told : public RegionImporter {
 public:
  void region_revoked(std::shared_ptr<Region> region) override {
    ++times;
    region->answered();
  }
  std::atomic<int> times{0};
};

class RegionWatchTest : public ::testing::Test {
 protected:
  // The table has its regions until they are taken back.
  ~RegionWatchTest() override {
    for (const auto& region : regions_) {
      if (const auto left = region.lock()) left->revoke(std::chrono::steady_clock::now());
    }
  }

  struct Watched {
    std::shared_ptr<Region> region;
    std::shared_ptr<Fragile> memory;
    std::shared_ptr<Told> told = std::make_shared<Told>();
  };

  Watched watched() {
    Watched made;
    made.region = table_->add(bytes_, sizeof bytes_, {MemoryKind::kCuda, 0}).value();
    made.memory = transport_->last;
    regions_.push_back(made.region);
    EXPECT_TRUE(made.region->add_importer(made.told));
    watch_.add(made.region);
    return made;
  }

  char bytes_[16] = {};
  std::shared_ptr<FragileTransport> transport_ = std::make_shared<FragileTransport>();
  std::shared_ptr<RegionTable> table_ =
      std::make_shared<RegionTable>(TransportList{{transport_}}, Incarnation{1}, std::chrono::seconds(1));
  std::vector<std::weak_ptr<Region>> regions_;
  RegionWatch watch_;
};

TEST_F(RegionWatchTest, WithholdsMemoryThatChangedAndNoOther) {
  const Watched good = watched();
  const Watched bad = watched();
  ASSERT_TRUE(eventually([&] { return good.memory->looks > 1 && bad.memory->looks > 1; }));
  EXPECT_EQ(bad.told->times, 0);
  bad.memory->broken = true;
  ASSERT_TRUE(eventually([&] { return bad.told->times == 1; }));
  EXPECT_FALSE(AccessGuard(*bad.memory)) << "no access of a peer begins any more";
  EXPECT_FALSE(bad.region->add_importer(std::make_shared<Told>())) << "nobody is told of it anew";
  EXPECT_TRUE(table_->find(bad.region->info().id)) << "it stays known here";
  const int looks = good.memory->looks;
  EXPECT_TRUE(eventually([&] { return good.memory->looks > looks + 1; })) << "the other one is looked after";
  EXPECT_EQ(good.told->times, 0);
  EXPECT_TRUE(bad.region->revoke(std::chrono::steady_clock::now()));
  EXPECT_FALSE(table_->find(bad.region->info().id));
  EXPECT_EQ(bad.told->times, 1);
}

TEST_F(RegionWatchTest, StartsAgainAfterTheLastRegionIsGone) {
  for (int round = 0; round < 3; ++round) {
    Watched one = watched();
    ASSERT_TRUE(eventually([&] { return one.memory->looks > 0; })) << round;
    one.region->revoke(std::chrono::steady_clock::now());
    const std::weak_ptr<Region> gone = one.region;
    one.region.reset();
    ASSERT_TRUE(eventually([&] { return gone.expired(); })) << "the watch keeps nothing";
  }
}

TEST_F(RegionWatchTest, LooksAtNothingOnceStopped) {
  const Watched before = watched();
  watch_.stop();
  const int looks = before.memory->looks;
  const Watched after = watched();
  watch_.stop();
  EXPECT_EQ(before.memory->looks, looks);
  EXPECT_EQ(after.memory->looks, 0);
}

}  // namespace
}  // namespace p2p::engine
