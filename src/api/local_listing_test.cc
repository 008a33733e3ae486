// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "p2p/local_listing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "base/process_id.h"
#include "p2p/endpoint.h"

namespace p2p {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

/// A folder of its own for the list.
class LocalListingTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string folder = ::testing::TempDir() + "listing.XXXXXX";
    if (::mkdtemp(folder.data()) != nullptr) folder_ = folder;
    ::setenv("XDG_RUNTIME_DIR", folder_.c_str(), 1);  // NOLINT(concurrency-mt-unsafe): one thread yet
  }
  void TearDown() override {
    ::unsetenv("XDG_RUNTIME_DIR");  // NOLINT(concurrency-mt-unsafe): one thread again
    std::filesystem::remove_all(folder_);
  }

  static Endpoint endpoint() {
    Options options;
    options.listen_address = "127.0.0.1";
    options.workers = 1;
    auto made = Endpoint::create(options);
    EXPECT_TRUE(made) << made.error().message;
    return std::move(*made);
  }

  /// An entry as another process would leave it.
  void entry(const std::string& name, std::uint64_t pid, std::uint64_t started, std::uint16_t port) const {
    std::filesystem::create_directories(folder_ + "/uccl_p2p");
    ::chmod((folder_ + "/uccl_p2p").c_str(), 0700);
    std::ofstream(folder_ + "/uccl_p2p/" + name)
        << "1 " << pid << ' ' << started << ' ' << namespace_id("pid").value_or(0) << " 1 7 " << port
        << " 127.0.0.1\n";
  }

  std::string folder_;
};

TEST_F(LocalListingTest, IsFoundByItsGpuWhileItLives) {
  const Endpoint one = endpoint();
  {
    const auto listing = LocalListing::announce(one, 7);
    ASSERT_TRUE(listing) << listing.error().message;
    const auto found = find_local(7);
    ASSERT_TRUE(found) << found.error().message;
    EXPECT_EQ(found->port, one.port());
    EXPECT_EQ(found->address, one.address());
    EXPECT_TRUE(find_local(7, one.address()));
    EXPECT_EQ(find_local(7, "203.0.113.1").error().code, ErrorCode::kNotFound);
    EXPECT_EQ(find_local(8).error().code, ErrorCode::kNotFound);
  }
  EXPECT_EQ(find_local(7).error().code, ErrorCode::kNotFound);
}

TEST_F(LocalListingTest, TheNewestCountsAndAnotherProcessBeforeThisOne) {
  const Endpoint one = endpoint();
  const Endpoint other = endpoint();
  const auto first = LocalListing::announce(one, 7);
  const auto second = LocalListing::announce(other, 7);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(find_local(7)->port, other.port());
  const auto parent = static_cast<std::uint64_t>(::getppid());
  const auto started = start_of(parent);
  if (!started) GTEST_SKIP() << started.error().message;
  entry("gpu7-parent", parent, *started, 1234);
  EXPECT_EQ(find_local(7)->port, 1234);
}

TEST_F(LocalListingTest, WhatADeadProcessLeftIsRemoved) {
  entry("gpu7-dead", 0x7fffffff, 1, 1234);
  const auto started = start_of(static_cast<std::uint64_t>(::getpid()));
  if (!started) GTEST_SKIP() << started.error().message;
  // Its number was given to another process since.
  entry("gpu7-again", static_cast<std::uint64_t>(::getpid()), *started - 1, 1235);
  EXPECT_EQ(find_local(7).error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(std::filesystem::is_empty(folder_ + "/uccl_p2p"));
}

TEST_F(LocalListingTest, OneThatIsNotThereYetIsWaitedFor) {
  const Endpoint one = endpoint();
  Result<LocalListing> listing;
  std::thread later([&] { listing = LocalListing::announce(one, 7); });
  const auto found = find_local(7, {}, 20s);
  later.join();
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(found->port, one.port());
  EXPECT_EQ(find_local(8, {}, 1ms).error().code, ErrorCode::kNotFound);
}

TEST_F(LocalListingTest, AFolderThatOthersCanEnterIsRefused) {
  std::filesystem::create_directory(folder_ + "/uccl_p2p");
  ::chmod((folder_ + "/uccl_p2p").c_str(), 0755);
  EXPECT_EQ(find_local(7).error().code, ErrorCode::kPermissionDenied);
  const auto listing = LocalListing::announce(endpoint(), 7);
  ASSERT_FALSE(listing);
  EXPECT_THAT(listing.error().message, HasSubstr("nobody else can enter"));
}

}  // namespace
}  // namespace p2p
