// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "p2p/directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "api/directory_drivers.h"
#include "api/directory_testing.h"
#include "support/bounds.h"
#include "support/eventually.h"

namespace p2p::directories {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kDecode;
using testing::kLimit;

namespace fs = std::filesystem;

class DirectoryTest : public ::testing::Test {
 protected:
  DirectoryTest() {
    std::string pattern = ::testing::TempDir() + "/directory-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  ~DirectoryTest() override { fs::remove_all(folder_); }

  Directory open(std::chrono::milliseconds lease = 1s) const {
    return Directory::use("folder://" + folder_, lease).value();
  }

  void write(const std::string& file, const std::string& text) const {
    std::ofstream(folder_ + "/" + file) << text;
  }

  std::string read(const std::string& file) const {
    std::ifstream in(folder_ + "/" + file);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  std::string folder_;
};

TEST_F(DirectoryTest, WhoPublishesIsFoundUntilItIsWithdrawn) {
  testing::expect_found_until_withdrawn([this] { return open(); });
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(DirectoryTest, WhoIsNotThereYetIsWaitedFor) {
  std::thread later([this] {
    Directory theirs = open();
    ASSERT_TRUE(theirs.publish(kDecode));
    ASSERT_TRUE(theirs.lookup("done", kLimit));
  });
  Directory ours = open();
  EXPECT_EQ(ours.lookup("decode/0", kLimit).value(), kDecode);
  EXPECT_TRUE(ours.publish({"done", "10.0.0.2", 1}));
  later.join();
}

TEST_F(DirectoryTest, WhatIsPublishedIsRenewedAndThatOfTheDeadIsPassedOver) {
  Directory ours = open();
  ASSERT_TRUE(ours.publish(kDecode));
  write("dead.endpoint", text_of({"dead", "10.0.0.2", 7}, std::chrono::system_clock::now() - 1s));
  EXPECT_THAT(ours.entries().value(), ElementsAre(kDecode));
  const std::string first = read("decode%2F0.endpoint");
  EXPECT_TRUE(testing::eventually([&] {
    const std::string now = read("decode%2F0.endpoint");
    return !now.empty() && now != first;
  }));
  // One that has been dead for more than a minute is removed.
  fs::last_write_time(folder_ + "/dead.endpoint", fs::file_time_type::clock::now() - 2min);
  EXPECT_THAT(ours.entries().value(), ElementsAre(kDecode));
  EXPECT_FALSE(fs::exists(folder_ + "/dead.endpoint"));
}

TEST_F(DirectoryTest, WatchTellsWhatHasChanged) {
  testing::expect_changes_told([this] { return open(); }, kLimit);
}

// python/tests/test_directory.py has the same two texts.
TEST_F(DirectoryTest, ReadsAndWritesWhatPythonDoes) {
  write("b%20c%2F%C3%BC.endpoint",
        R"({"address": "fe80::1", "port": 6, "gpu": "0000:3b:00.0", "until": 4000000000.0})");
  EXPECT_EQ(open().lookup("b c/ü").value(), (DirectoryEntry{"b c/ü", "fe80::1", 6, "0000:3b:00.0"}));
  EXPECT_EQ(text_of(kDecode, std::chrono::system_clock::time_point(4'000'000'000s)),
            R"({"address": "10.0.0.1", "port": 5, "gpu": 0, "until": 4000000000.000000})");
}

TEST(DirectoryTextTest, WhatIsNoEntryIsNone) {
  const auto parsed = [](std::string_view text) { return parse("a", text, {}); };
  EXPECT_TRUE(parsed(R"( { "port" : 5 , "gpu":0,"address":"a\u002eb" } )"));
  EXPECT_EQ(parsed(R"({"address": "\u00fc\u65e5\ud83d\ude00", "port": 5, "gpu": 0})")->address, "ü日😀");
  EXPECT_TRUE(parsed(R"({"address": "a", "port": 5, "gpu": 0, "note": "gr\u00fcn"})"));
  for (const char* const text :
       {"", "{", "{}", "5", R"({"address": "a", "port": 5})", R"({"address": "a", "port": 0, "gpu": 0})",
        R"({"address": "a", "port": 65536, "gpu": 0})", R"({"address": "a", "port": 5x, "gpu": 0})",
        R"({"address": "a", "port": 5, "gpu": 0, "until": "never"})",
        R"({"address": "a", "port": 5, "gpu": 0, "until": nan})",
        R"({"address": "a", "port": 5, "gpu": [0]})", R"({"address": "a\ud83d", "port": 5, "gpu": 0})",
        R"({"address": "a\ude00", "port": 5, "gpu": 0})",
        R"({"address": "\ud83d\u0041", "port": 5, "gpu": 0})",
        R"({"address": "a\u00g4", "port": 5, "gpu": 0})", R"({"address": "a\)",
        R"({"address": "a", "port": 5, "gpu": 0} x)"}) {
    EXPECT_FALSE(parsed(text)) << text;
  }
}

TEST_F(DirectoryTest, AnyNameIsListed) {
  Directory names = open();
  for (const char* const name : {" a", ".b", "..", "ü"}) {
    const DirectoryEntry entry{name, "10.0.0.1", 5, "0"};
    ASSERT_TRUE(names.publish(entry)) << name;
    EXPECT_THAT(names.entries().value(), ElementsAre(entry));
    ASSERT_TRUE(names.withdraw(name));
  }
}

TEST_F(DirectoryTest, FilesThatAreNoEntriesHangNobody) {
  ASSERT_EQ(::mkfifo((folder_ + "/pipe.endpoint").c_str(), 0600), 0);
  write("nonsense.endpoint", "{{");
  Directory ours = open();
  EXPECT_THAT(ours.entries().value(), IsEmpty());
  EXPECT_THAT(ours.lookup("pipe").error().message, HasSubstr("no file"));
}

TEST_F(DirectoryTest, StaticOnesAreReadAndNotWritten) {
  write("peers", "# who\na=10.0.0.1:5\n\nb = [fe80::1]:6\r\n");
  ASSERT_EQ(::setenv("P2P_TEST_PEERS", "a=10.0.0.1:5,b=[fe80::1]:6", 1), 0);
  for (const std::string& where : {"static://" + folder_ + "/peers", std::string("static://$P2P_TEST_PEERS"),
                                   std::string("static://a=10.0.0.1:5,b=[fe80::1]:6")}) {
    Directory names = Directory::use(where).value();
    EXPECT_THAT(names.entries().value(),
                ElementsAre(DirectoryEntry{"a", "10.0.0.1", 5}, DirectoryEntry{"b", "fe80::1", 6}));
    EXPECT_TRUE(names.publish({"a", "10.0.0.1", 5}));
    EXPECT_THAT(names.publish({"a", "10.0.0.2", 5}).error().message, HasSubstr("it is 10.0.0.1:5 there"));
    EXPECT_EQ(names.lookup("c").error().code, ErrorCode::kNotFound);
  }
  EXPECT_THAT(Directory::use("static://a=10.0.0.1")->entries().error().message,
              HasSubstr("no name=host:port"));
  EXPECT_EQ(Directory::use("static:///no/such/file")->entries().error().code, ErrorCode::kNotFound);
}

TEST(DirectoryUseTest, RefusesWhatIsNone) {
  for (const char* const where : {"redis://x", "folder://here", "static://$P2P_TEST_NONE", ""}) {
    EXPECT_EQ(Directory::use(where).error().code, ErrorCode::kInvalidArgument) << where;
  }
  EXPECT_EQ(Directory::use("folder:///x", 60s).error().code, ErrorCode::kInvalidArgument);
  Directory names = Directory::use("folder:///proc/no/such").value();
  EXPECT_THAT(names.publish(kDecode).error().message, HasSubstr("publish \"decode/0\" in /proc/no/such"));
  EXPECT_EQ(names.publish({"two\nlines", "a", 5}).error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(names.publish({"a", "", 5}).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace p2p::directories
