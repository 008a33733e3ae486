// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/fork.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <functional>
#include <memory>

#include "base/unique_fd.h"
#include "support/process.h"

namespace p2p {
namespace {

/// Whether a child finds it so.
bool holds_in_child(const std::function<bool()>& so) {
  return testing::in_child([&] { return so() ? 7 : 1; }).code == 7;
}

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

TEST(Birthplace, IsLeftByAChildAlone) {
  const Birthplace here;
  EXPECT_TRUE(holds_in_child([&] { return here.left() && !Birthplace().left(); }));
  EXPECT_FALSE(here.left());
}

TEST(UniqueFd, IsClosedInAChildWhichMayHaveItsNumberForItself) {
  auto mine = std::make_unique<UniqueFd>(UniqueFd::of(::eventfd, 0, EFD_CLOEXEC));
  const UniqueFd high = UniqueFd::of(::fcntl, mine->get(), F_DUPFD_CLOEXEC, 700);
  const int other = ::eventfd(0, EFD_CLOEXEC);
  EXPECT_TRUE(holds_in_child([&] {
    const bool closed = !is_open(mine->get()) && !is_open(high.get()) && is_open(other);
    UniqueFd own = UniqueFd::of(::eventfd, 0, EFD_CLOEXEC);
    const int number = own.get();
    const bool reused = number == mine->get();
    mine.reset();
    const bool stays = is_open(number);
    const bool none_of_a_grandchild = holds_in_child([&] { return !is_open(number) && is_open(other); });
    own.reset();
    return closed && reused && stays && none_of_a_grandchild && !is_open(number);
  }));
  EXPECT_TRUE(is_open(mine->get()) && is_open(high.get()));
  ::close(other);
}

TEST(UniqueFd, ANumberThatWasGivenBackIsTheApplications) {
  UniqueFd mine = UniqueFd::of(::eventfd, 0, EFD_CLOEXEC);
  UniqueFd moved = std::move(mine);
  const int number = moved.get();
  moved.reset();
  const int other = ::eventfd(0, EFD_CLOEXEC);
  ASSERT_EQ(other, number);
  EXPECT_TRUE(holds_in_child([&] { return is_open(other); }));
  ::close(other);
}

TEST(EngineUse, IsKnownToChildrenThatWereForkedMeanwhile) {
  EXPECT_FALSE(forked_in_use());
  EXPECT_TRUE(holds_in_child([] { return !forked_in_use(); }));
  {
    const EngineUse use;
    EXPECT_TRUE(
        holds_in_child([] { return forked_in_use() && holds_in_child([] { return forked_in_use(); }); }));
  }
  EXPECT_FALSE(forked_in_use());
  EXPECT_TRUE(holds_in_child([] { return !forked_in_use(); }));
}

}  // namespace
}  // namespace p2p
