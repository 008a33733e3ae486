// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "p2p/local_listing.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "base/process_id.h"
#include "base/unique_fd.h"
#include "p2p/endpoint.h"
#include "support/bounds.h"

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

  /// An entry as another process has it, while the descriptor is open: then it is dead.
  UniqueFd entry(const std::string& name, std::uint64_t pid_namespace, std::uint16_t port) const {
    std::filesystem::create_directories(folder_ + "/uccl_p2p");
    ::chmod((folder_ + "/uccl_p2p").c_str(), 0700);
    const std::string path = folder_ + "/uccl_p2p/" + name;
    std::ofstream(path) << "2 " << ::getppid() << ' ' << pid_namespace << " 1 7 " << port << " 127.0.0.1\n";
    UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    EXPECT_EQ(::flock(file.get(), LOCK_EX | LOCK_NB), 0);
    return file;
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
  const UniqueFd parent = entry("gpu7-parent", namespace_id("pid").value_or(0), 1234);
  EXPECT_EQ(find_local(7)->port, 1234);
}

TEST_F(LocalListingTest, WhatADeadProcessLeftIsRemovedAlsoThatOfAnotherContainer) {
  for (const std::uint64_t space : {namespace_id("pid").value_or(0), std::uint64_t{1}}) {
    UniqueFd owner = entry("gpu7-other", space, 1234);
    EXPECT_EQ(find_local(7)->port, 1234);
    owner.reset();
    EXPECT_EQ(find_local(7).error().code, ErrorCode::kNotFound);
    EXPECT_TRUE(std::filesystem::is_empty(folder_ + "/uccl_p2p"));
  }
}

TEST_F(LocalListingTest, ThoseThatCouldNotBeReachedArePassedOver) {
  const Endpoint own = endpoint();
  const auto listing = LocalListing::announce(own, 7);
  const UniqueFd other = entry("gpu7-other", 1, 1234);
  const LocalEndpoint unreachable = find_local(7).value();
  EXPECT_EQ(unreachable.port, 1234);
  const std::array except{unreachable};
  EXPECT_EQ(find_local(7, {}, 0ns, except)->port, own.port());
}

TEST_F(LocalListingTest, AFolderOfSeveralContainersIsOneList) {
  const std::string shared = folder_ + "/shared";
  std::filesystem::create_directory(shared);
  ::chmod(shared.c_str(), 0777);
  const Endpoint own = endpoint();
  const auto listing = LocalListing::announce(own, 7, shared);
  ASSERT_TRUE(listing) << listing.error().message;
  EXPECT_EQ(find_local(7, {}, 0ns, {}, shared)->port, own.port());
  EXPECT_EQ(find_local(7).error().code, ErrorCode::kNotFound) << "that is another list";
  if (::geteuid() != 0) GTEST_SKIP() << "to write as another user takes root";
  const std::string theirs = shared + "/gpu7-of-another-user";
  std::ofstream(theirs) << "2 5 1 9000000000000000000 7 1234 127.0.0.1\n";
  ASSERT_EQ(::chown(theirs.c_str(), 65534, 65534), 0);
  EXPECT_EQ(find_local(7, {}, 0ns, {}, shared)->port, own.port());
  EXPECT_TRUE(std::filesystem::exists(theirs));
}

TEST_F(LocalListingTest, AProcessShortOfDescriptorsRemovesNothing) {
  if (testing::kSanitized)
    GTEST_SKIP() << "a sanitizer looks at memory by a pipe, and takes none for bad memory";
  const Endpoint own = endpoint();
  const auto listing = LocalListing::announce(own, 7);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  // One is left, with which the directory is read, and none for its files.
  const UniqueFd highest(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0));
  rlimit tight = before;
  tight.rlim_cur = static_cast<rlim_t>(highest.get()) + 2;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
  EXPECT_FALSE(find_local(7));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(find_local(7)->port, own.port());
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
