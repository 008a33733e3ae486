// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/peer_text.h"

#include <gtest/gtest.h>

namespace p2p {
namespace {

TEST(PeerText, ShowsPrintableAsciiAlone) {
  EXPECT_EQ(PeerText("plain ~ text"), "plain ~ text");
  EXPECT_EQ(PeerText("a\nb\x1b[31m\x7f\xc3\xa9"), "a?b?[31m???");
  EXPECT_EQ(PeerText(std::string_view("nul\0 inside", 11)), "nul? inside");
}

TEST(PeerText, IsCutVisibly) {
  const std::string longest(PeerText::kMaxBytes, 'x');
  EXPECT_EQ(PeerText(longest), longest);
  const PeerText cut(longest + "y");
  EXPECT_EQ(cut.text().size(), PeerText::kMaxBytes);
  EXPECT_TRUE(cut.text().ends_with("x..."));
  EXPECT_EQ(PeerText(cut.text()), cut) << "whoever sends it on changes nothing";
  EXPECT_EQ(PeerText("abcdef", 5), "ab...");
}

TEST(PeerText, IsFormattedLikeAnyText) { EXPECT_EQ(fmt::format("{:>4}|", PeerText("ab")), "  ab|"); }

}  // namespace
}  // namespace p2p
