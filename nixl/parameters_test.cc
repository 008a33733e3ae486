// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "parameters.h"

#include <gtest/gtest.h>

namespace p2p::nixl {
namespace {

TEST(Parameters, SayHowTransfersArePosted) {
  const auto none = read_posts({}).value();
  EXPECT_EQ(none.priority, Priority::kNormal);
  EXPECT_EQ(none.rate, 0U);
  const auto both = read_posts({{"priority", "low"}, {"rate", "125000000"}, {"transport", "tcp"}}).value();
  EXPECT_EQ(both.priority, Priority::kLow);
  EXPECT_EQ(both.rate, 125'000'000U);
  EXPECT_EQ(read_posts({{"priority", "high"}, {"rate", ""}})->priority, Priority::kHigh);
  const auto urgent = read_posts({{"priority", "urgent"}});
  ASSERT_FALSE(urgent);
  EXPECT_NE(urgent.error().message.find("parameter priority: \"urgent\""), std::string::npos);
  EXPECT_FALSE(none.verify);
  EXPECT_TRUE(read_posts({{"verify", "1"}})->verify);
  EXPECT_FALSE(read_posts({{"verify", "0"}})->verify);
  EXPECT_FALSE(read_posts({{"verify", "always"}}));
  for (const char* const rate : {"fast", "-1", "1M", "99999999999999999999"}) {
    EXPECT_FALSE(read_posts({{"rate", rate}})) << rate;
  }
}

TEST(Parameters, ThoseOfPostsAreListedAndAreNoOptions) {
  EXPECT_TRUE(known_parameters().contains("priority"));
  EXPECT_TRUE(known_parameters().contains("rate"));
  EXPECT_TRUE(known_parameters().contains("verify"));
  EXPECT_TRUE(read_options({{"priority", "low"}, {"rate", "1"}}));
  EXPECT_FALSE(read_options({{"urgency", "low"}}));
}

TEST(Parameters, ThoseOfTheBackendUcclChangeNothing) {
  const auto options = read_options({{"in_python", "true"}, {"num_cpus", "4"}});
  ASSERT_TRUE(options);
  EXPECT_EQ(options->workers, read_options({})->workers);
}

}  // namespace
}  // namespace p2p::nixl
