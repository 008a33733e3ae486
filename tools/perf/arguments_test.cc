// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "arguments.h"

#include <gmock/gmock.h>

namespace p2p::perf {
namespace {

TEST(Arguments, RowsRunByTransportThenOperationThenSize) {
  Arguments arguments;
  arguments.transports = "cma,tcp";
  arguments.operations = "write,read";
  arguments.sizes = "4K:8K";
  const auto rows = make_rows(arguments).value();
  ASSERT_EQ(rows.size(), 8u);
  EXPECT_EQ(rows[0].transport, "cma");
  EXPECT_EQ(rows[4].transport, "tcp");
  EXPECT_EQ(rows[2].operation, Operation::kRead);
  EXPECT_EQ(rows[3].size, 8192u);
  EXPECT_NE(rows[0].seed, rows[1].seed);
}

TEST(Arguments, ListsArePreparedUnlessFresh) {
  Arguments arguments;
  EXPECT_FALSE(make_rows(arguments).value()[0].prepared);
  arguments.blocks = 2;
  EXPECT_TRUE(make_rows(arguments).value()[0].prepared);
  arguments.fresh = true;
  EXPECT_FALSE(make_rows(arguments).value()[0].prepared);
}

TEST(Arguments, RowsHaveTheirPriorityAndRate) {
  Arguments arguments;
  EXPECT_EQ(make_rows(arguments).value()[0].priority, Priority::kNormal);
  arguments.priority = "high";
  arguments.rate = "10M";
  arguments.digest = true;
  arguments.beside = "64M";
  const Row row = make_rows(arguments).value()[0];
  EXPECT_EQ(row.priority, Priority::kHigh);
  EXPECT_EQ(row.rate, 10U << 20);
  EXPECT_TRUE(row.digest);
  EXPECT_EQ(row.beside, 64U << 20);
  arguments.operations = "send";
  EXPECT_FALSE(make_rows(arguments));
  arguments = {};
  arguments.priority = "urgent";
  EXPECT_FALSE(make_rows(arguments));
}

TEST(Arguments, RefusesRowsThatCannotBe) {
  Arguments arguments;
  arguments.depth = 0;
  EXPECT_FALSE(make_rows(arguments));
  arguments = {};
  arguments.sizes = "1T";
  EXPECT_FALSE(make_rows(arguments));
  arguments = {};
  arguments.operations = "fling";
  EXPECT_FALSE(make_rows(arguments));
  arguments = {};
  arguments.duration = 0;
  EXPECT_FALSE(make_rows(arguments));
  for (const std::int64_t pause : {-1, 3'600'000}) {
    arguments = {};
    arguments.pause = pause;
    EXPECT_FALSE(make_rows(arguments)) << pause;
  }
}

}  // namespace
}  // namespace p2p::perf
