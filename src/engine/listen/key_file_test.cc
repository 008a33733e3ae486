// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/listen/key_file.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace p2p::engine {
namespace {

using ::testing::HasSubstr;

class KeyFile : public ::testing::Test {
 protected:
  void write(const std::string& text, mode_t mode = 0600) {
    // A new file, as editors and config maps make them.
    std::filesystem::remove(path_);
    std::ofstream(path_) << text;
    ASSERT_EQ(::chmod(path_.c_str(), mode), 0);
  }
  void TearDown() override { std::filesystem::remove(path_); }

  /// "name=secret" of each key; the error's text if there is one.
  std::string read() {
    const auto keys = read_key_file(path_);
    if (!keys) return keys.error().message;
    std::string text;
    for (const auto& key : *keys) text += key.name + "=" + to_string(ByteView(key.secret)) + ";";
    return text;
  }

  const std::string path_ = ::testing::TempDir() + "/p2p_key_file_test." + std::to_string(::getpid());
};

TEST_F(KeyFile, OneKeyWithoutAName) {
  write(" 0123456789abcdef \n");
  EXPECT_EQ(read(), "=0123456789abcdef;");
  write("/any+bytes: of which\nthe first line names nothing\n");
  EXPECT_EQ(read(), "=/any+bytes: of which\nthe first line names nothing;");
}

TEST_F(KeyFile, KeysWithNames) {
  write("\nnew-1.x:0123456789abcdef\r\n\n  old_2: fedcba9876543210:x \n:0123456789abcdef");
  EXPECT_EQ(read(), "new-1.x=0123456789abcdef;old_2=fedcba9876543210:x;=0123456789abcdef;");
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
  EXPECT_THAT(missing.error().message, HasSubstr("missing"));
}

TEST_F(KeyFile, RefusesLinesThatAreNoKeys) {
  write("a:0123456789abcdef\nb:short\n");
  EXPECT_THAT(read(), HasSubstr("the key 'b' has 5 bytes"));
  write("a:0123456789abcdef\na:0123456789abcdeg\n");
  EXPECT_THAT(read(), HasSubstr("the key 'a' comes twice"));
  write("a:0123456789abcdef\n\nand something else\n");
  EXPECT_THAT(read(), HasSubstr("line 3 is not name:secret"));
  write(std::string(65, 'n') + ":0123456789abcdef");  // no name, but a secret
  EXPECT_EQ(read(), "=" + std::string(65, 'n') + ":0123456789abcdef;");
}

}  // namespace
}  // namespace p2p::engine
