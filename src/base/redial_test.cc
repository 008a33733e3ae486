// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/redial.h"

#include <gtest/gtest.h>

namespace p2p {
namespace {

TEST(Redial, PausesDoubleUpToALimitAndEnd) {
  Redial redial;
  std::chrono::milliseconds last{0};
  std::chrono::milliseconds sum{0};
  int dials = 0;
  for (;;) {
    redial.dialled();
    ++dials;
    const auto pause = redial.pause();
    if (!pause) break;
    EXPECT_EQ(*pause, dials == 1 ? Redial::kFirstPause : std::min(2 * last, Redial::kLongestPause)) << dials;
    last = *pause;
    sum += *pause;
  }
  EXPECT_EQ(dials, Redial::kMaxDials);
  EXPECT_EQ(sum, std::chrono::milliseconds(1115)) << "docs/security.md says 1.1 s";
}

}  // namespace
}  // namespace p2p
