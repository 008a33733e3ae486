// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "percentile.h"

#include <gtest/gtest.h>

#include <numeric>

namespace p2p::perf {
namespace {

TEST(Percentile, NearestRankOfAHundred) {
  std::vector<double> values(100);
  std::iota(values.rbegin(), values.rend(), 1.0);
  EXPECT_EQ(percentile(values, 0.50), 50.0);
  EXPECT_EQ(percentile(values, 0.99), 99.0);
  EXPECT_EQ(percentile(values, 1.00), 100.0);
  EXPECT_EQ(percentile(values, 0.00), 1.0);
}

TEST(Percentile, FewValues) {
  std::vector<double> none;
  EXPECT_EQ(percentile(none, 0.5), 0.0);
  std::vector<double> one{7};
  EXPECT_EQ(percentile(one, 0.99), 7.0);
  std::vector<double> three{3, 1, 2};
  EXPECT_EQ(percentile(three, 0.5), 2.0);
  EXPECT_EQ(percentile(three, 0.99), 3.0);
}

}  // namespace
}  // namespace p2p::perf
