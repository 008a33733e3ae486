// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/socket/local_place.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "drivers/socket/local_socket.h"
#include "support/process.h"

namespace p2p::socket {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class LocalPlace : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string folder = ::testing::TempDir() + "place.XXXXXX";
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    place_ = Place::at(folder_).value();
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  /// As a killed process leaves one behind.
  void leave_dead(const std::string& name) const {
    Listener listener = listen_locally(name, place_).value();
    fs::create_hard_link(path(name), path(name) + "x");
    listener.reset();
    fs::rename(path(name) + "x", path(name));
  }

  void make_old(const std::string& name) const {
    const timespec times[2] = {{.tv_sec = 1, .tv_nsec = 0}, {.tv_sec = 1, .tv_nsec = 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, path(name).c_str(), times, AT_SYMLINK_NOFOLLOW), 0);
  }

  std::string folder_;
  Place place_;
};

TEST_F(LocalPlace, ASocketOfTheFolderIsItsOwnersAloneAndGoesWithTheListener) {
  Listener listener = listen_locally("p2p-cma-1", place_).value();
  struct stat status{};
  ASSERT_EQ(::lstat(path("p2p-cma-1").c_str(), &status), 0);
  EXPECT_TRUE(S_ISSOCK(status.st_mode));
  EXPECT_EQ(status.st_mode & 0777, 0600U);
  Listener moved = std::move(listener);
  const UniqueFd caller = connect_locally("p2p-cma-1", "p2p-cma-2", place_).value();
  EXPECT_TRUE(accept_local(moved));
  EXPECT_FALSE(fs::exists(path("p2p-cma-2"))) << "nobody connects to who has connected";
  moved.reset();
  EXPECT_TRUE(fs::is_empty(folder_));
  const auto none = connect_locally("p2p-cma-1", {}, place_);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kPeerGone);
  EXPECT_THAT(none.error().message, HasSubstr(folder_));
}

TEST_F(LocalPlace, ANameIsTheSameUnderAnotherPathOfTheFolder) {
  const std::string other = folder_ + ".mounted";
  fs::create_directory_symlink(folder_, other);
  const Place there = Place::at(other).value();
  EXPECT_EQ(*there.number(), *place_.number());
  EXPECT_TRUE(Place::is_folder(*there.number()));
  EXPECT_FALSE(Place::is_folder(*Place().number()));
  const Listener listener = listen_locally("p2p-cma-1", place_).value();
  const UniqueFd caller = connect_locally("p2p-cma-1", "p2p-cma-2", there).value();
  const UniqueFd accepted = accept_local(listener);
  EXPECT_EQ(name_at(accepted), "p2p-cma-2");
  EXPECT_EQ(name_at(caller), "p2p-cma-1");
  EXPECT_EQ(*process_at(accepted), ::getpid());
  fs::remove(other);
}

TEST_F(LocalPlace, SweepsWhatNobodyHoldsAndNothingElse) {
  const Listener alive = listen_locally("p2p-cma-alive", place_).value();
  for (const char* name : {"p2p-cma-dead", "p2p-cma-young", "other-dead"}) leave_dead(name);
  std::ofstream(path("p2p-file")) << "no socket";
  for (const char* name : {"p2p-cma-alive", "p2p-cma-dead", "other-dead", "p2p-file"}) make_old(name);
  place_.sweep();
  EXPECT_FALSE(fs::exists(path("p2p-cma-dead")));
  for (const char* name : {"p2p-cma-alive", "p2p-cma-young", "other-dead", "p2p-file"}) {
    EXPECT_TRUE(fs::exists(path(name))) << name;
  }
  EXPECT_FALSE(accept_local(alive)) << "who sweeps connects to nobody";
  EXPECT_TRUE(connect_locally("p2p-cma-alive", {}, place_));
}

TEST_F(LocalPlace, AChildDoesNotTakeTheParentsNameAway) {
  const Listener listener = listen_locally("p2p-cma-1", place_).value();
  const auto end = p2p::testing::in_child([&] {
    const_cast<Listener&>(listener).reset();
    return 0;
  });
  EXPECT_EQ(end.code, 0);
  EXPECT_TRUE(connect_locally("p2p-cma-1", {}, place_));
}

TEST_F(LocalPlace, SaysWhatIsWrongWithAFolder) {
  const auto refusal = [](const std::string& folder) {
    const auto place = Place::at(folder);
    return place ? std::string() : place.error().message;
  };
  EXPECT_EQ(refusal(""), "");
  EXPECT_THAT(refusal("sockets"),
              HasSubstr("sockets for sockets (UCCL_P2P_SOCKET_DIR): not an absolute path"));
  EXPECT_THAT(refusal("/" + std::string(70, 'x')), HasSubstr("71 bytes, 60 at most"));
  EXPECT_THAT(refusal(path("none")), HasSubstr("No such file"));
  std::ofstream(path("file")) << "";
  EXPECT_THAT(refusal(path("file")), HasSubstr("not a folder"));
}

}  // namespace
}  // namespace p2p::socket
