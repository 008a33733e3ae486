// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <utility>
#include <vector>

#include "p2p/directory.h"

/// What every directory promises in which one can publish. `open` gives an object of its own on one that is
/// empty.
namespace p2p::testing {

inline const DirectoryEntry kDecode{"decode/0", "10.0.0.1", 5, "0"};

inline void expect_found_until_withdrawn(const std::function<Directory()>& open) {
  using ::testing::ElementsAre;
  Directory ours = open();
  Directory theirs = open();
  EXPECT_EQ(ours.lookup("decode/0").error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(theirs.publish(kDecode));
  EXPECT_EQ(ours.lookup("decode/0").value(), kDecode);
  const DirectoryEntry other{"b c/ü", "fe80::1", 6, "0000:3b:00.0"};
  ASSERT_TRUE(theirs.publish(other));
  EXPECT_THAT(ours.entries().value(), ElementsAre(other, kDecode));
  EXPECT_TRUE(theirs.withdraw("decode/0"));
  EXPECT_THAT(ours.entries().value(), ElementsAre(other));
  {
    const Directory gone = std::move(theirs);
  }
  EXPECT_THAT(ours.entries().value(), ::testing::IsEmpty());
}

inline void expect_changes_told(const std::function<Directory()>& open, std::chrono::nanoseconds limit) {
  using ::testing::ElementsAre;
  Directory ours = open();
  Directory theirs = open();
  std::vector<DirectoryEntry> known;
  EXPECT_THAT(ours.watch(known, std::chrono::nanoseconds(0)).value(), ::testing::IsEmpty());
  ASSERT_TRUE(theirs.publish(kDecode));
  EXPECT_THAT(ours.watch(known, limit).value(), ElementsAre(DirectoryChange{kDecode}));
  DirectoryEntry moved = kDecode;
  moved.port = 6;
  ASSERT_TRUE(theirs.publish(moved));
  EXPECT_THAT(ours.watch(known, limit).value(), ElementsAre(DirectoryChange{moved}));
  ASSERT_TRUE(theirs.withdraw("decode/0"));
  EXPECT_THAT(ours.watch(known, limit).value(), ElementsAre(DirectoryChange{moved, true}));
  EXPECT_THAT(known, ::testing::IsEmpty());
}

}  // namespace p2p::testing
