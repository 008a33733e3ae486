// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/descriptor_table.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

namespace p2p {
namespace {

std::size_t room() {
  std::ifstream status("/proc/self/status");
  std::string word;
  std::size_t size = 0;
  while (status >> word) {
    if (word == "FDSize:" && status >> size) break;
  }
  return size;
}

std::ptrdiff_t open_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

TEST(DescriptorTable, HasRoomForWhatIsExpected) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  ASSERT_GE(limit.rlim_cur, 1024U);
  const auto open = open_descriptors();
  make_room_for_descriptors(1024);
  EXPECT_GE(room(), 1024U);
  EXPECT_EQ(open_descriptors(), open);
}

TEST(DescriptorTable, StaysWithinWhatTheProcessMayHave) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit little{128, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &little), 0);
  const auto open = open_descriptors();
  make_room_for_descriptors(1024);
  EXPECT_EQ(open_descriptors(), open);
  EXPECT_GE(room(), 128U);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
}

}  // namespace
}  // namespace p2p
