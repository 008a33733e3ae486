// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "sizes.h"

#include <gmock/gmock.h>

namespace p2p::perf {
namespace {

using ::testing::ElementsAre;

TEST(Sizes, ReadsPlainAndSuffixedNumbers) {
  EXPECT_EQ(parse_size("4096").value(), 4096u);
  EXPECT_EQ(parse_size("64K").value(), 64u << 10);
  EXPECT_EQ(parse_size("64k").value(), 64u << 10);
  EXPECT_EQ(parse_size("2MiB").value(), 2u << 20);
  EXPECT_EQ(parse_size("3GB").value(), std::uint64_t{3} << 30);
}

TEST(Sizes, RefusesWhatIsNoSize) {
  for (const char* text :
       {"", "K", "0", "-1", "12X", "1KiBs", "4 K", "1.5M", "99999999999999999999", "20000000T"}) {
    const auto size = parse_size(text);
    ASSERT_FALSE(size) << text;
    EXPECT_EQ(size.error().code, ErrorCode::kInvalidArgument);
  }
}

TEST(Sizes, RangesDoubleAndListsConcatenate) {
  EXPECT_THAT(parse_sizes("4K:16K").value(), ElementsAre(4096, 8192, 16384));
  EXPECT_THAT(parse_sizes("3:13").value(), ElementsAre(3, 6, 12));
  EXPECT_THAT(parse_sizes("1M,5,1K:2K").value(), ElementsAre(1 << 20, 5, 1024, 2048));
}

TEST(Sizes, RangeUpToTheLargestNumberEnds) {
  EXPECT_EQ(parse_sizes("1:18446744073709551615").value().size(), 64u);
}

TEST(Sizes, RefusesBackwardAndHalfRanges) {
  EXPECT_FALSE(parse_sizes("8K:4K"));
  EXPECT_FALSE(parse_sizes("8K:"));
  EXPECT_FALSE(parse_sizes(":8K"));
  EXPECT_FALSE(parse_sizes("4K,,8K"));
  EXPECT_FALSE(parse_sizes(""));
}

TEST(Sizes, FormatIsTheShortestExactForm) {
  EXPECT_EQ(format_size(1), "1");
  EXPECT_EQ(format_size(4097), "4097");
  EXPECT_EQ(format_size(64 << 10), "64K");
  EXPECT_EQ(format_size(std::uint64_t{3} << 30), "3G");
}

}  // namespace
}  // namespace p2p::perf
