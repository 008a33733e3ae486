// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/memory/remote_region.h"

#include <gtest/gtest.h>

namespace p2p::engine {
namespace {

class CountingKey : public RemoteKey {
 public:
  explicit CountingKey(int& retired) : RemoteKey(RegionInfo{}), retired_(retired) {}
  void retire() const override { ++retired_; }

 private:
  int& retired_;
};

struct Tracked {
  int retired = 0;
  int through = 0;
  RemoteRegion region{RemoteRegionId{1}, RegionDescriptor{}};

  Tracked() {
    std::vector<std::unique_ptr<RemoteKey>> keys(2);  // the first transport cannot reach it
    keys[1] = std::make_unique<CountingKey>(retired);
    region.set_ready(RegionInfo{}, std::move(keys), std::vector<std::string>(2));
  }

  void fail() {
    region.set_failed({ErrorCode::kNotFound, "revoked"}, [this] {
      EXPECT_EQ(retired, 1);  // before the owner hears of it
      ++through;
    });
  }
};

TEST(RemoteRegion, UnusedKeysRetireAtOnce) {
  Tracked tracked;
  tracked.fail();
  EXPECT_EQ(tracked.retired, 1);
  EXPECT_EQ(tracked.through, 1);
  EXPECT_FALSE(tracked.region.add_user());
}

TEST(RemoteRegion, KeysRetireAfterTheLastUser) {
  Tracked tracked;
  ASSERT_TRUE(tracked.region.add_user());
  ASSERT_TRUE(tracked.region.add_user());
  tracked.fail();
  tracked.region.remove_user();
  EXPECT_EQ(tracked.retired, 0);
  EXPECT_EQ(tracked.through, 0);
  tracked.region.remove_user();
  EXPECT_EQ(tracked.retired, 1);
  EXPECT_EQ(tracked.through, 1);
}

TEST(RemoteRegion, UsersOfAReadyOneRetireNothing) {
  Tracked tracked;
  ASSERT_TRUE(tracked.region.add_user());
  tracked.region.remove_user();
  EXPECT_EQ(tracked.retired, 0);
}

}  // namespace
}  // namespace p2p::engine
