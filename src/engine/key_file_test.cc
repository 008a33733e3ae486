// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/key_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace p2p::engine {
namespace {

class KeyFile : public testing::Test {
 protected:
  void write(const std::string& text, mode_t mode = 0600) {
    std::ofstream(path_) << text;
    ASSERT_EQ(::chmod(path_.c_str(), mode), 0);
  }
  void TearDown() override { std::filesystem::remove(path_); }

  const std::string path_ = testing::TempDir() + "/p2p_key_file_test." + std::to_string(::getpid());
};

TEST_F(KeyFile, TrimsWhiteSpace) {
  write(" 0123456789abcdef \n");
  const auto key = read_key_file(path_);
  ASSERT_TRUE(key) << key.error().message;
  EXPECT_EQ(to_string(ByteView(*key)), "0123456789abcdef");
}

TEST_F(KeyFile, RefusesWhatIsNoSecret) {
  write("\n");
  EXPECT_EQ(read_key_file(path_).error().code, ErrorCode::kInvalidArgument);
  write("short");
  EXPECT_EQ(read_key_file(path_).error().code, ErrorCode::kInvalidArgument);
  write("0123456789abcdef", 0644);
  EXPECT_EQ(read_key_file(path_).error().code, ErrorCode::kPermissionDenied);
  const auto missing = read_key_file(path_ + ".missing");
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message.find("missing"), std::string::npos);
}

}  // namespace
}  // namespace p2p::engine
