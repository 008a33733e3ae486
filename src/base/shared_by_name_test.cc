// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/shared_by_name.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace p2p {
namespace {

using Shared = SharedByName<int>;
Result<std::shared_ptr<int>> make() { return std::make_shared<int>(0); }

TEST(SharedByName, OneForANameWhileAnybodyHoldsIt) {
  Shared all;
  const auto refuse = []() -> Result<std::shared_ptr<int>> { return fail(ErrorCode::kUnavailable, "none"); };
  EXPECT_FALSE(all.get("a", refuse));
  auto first = all.get("a", make).value();
  EXPECT_EQ(all.get("a", refuse).value(), first);
  EXPECT_NE(all.get("b", make).value(), first);
  first.reset();
  EXPECT_FALSE(all.get("a", refuse)) << "nobody holds it any more";
}

}  // namespace
}  // namespace p2p
