// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/process_id.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "support/process.h"

namespace p2p {
namespace {

TEST(ProcessIdTest, IsTheSameAtEveryLook) {
  const auto first = this_process();
  ASSERT_TRUE(first) << first.error().message;
  EXPECT_EQ(*first, this_process().value());
  EXPECT_EQ(first->pid, static_cast<std::uint64_t>(::getpid()));
  EXPECT_NE(first->started, 0U);
  EXPECT_NE(first->boot, decltype(first->boot){});
}

TEST(ProcessIdTest, AnotherProcessOfTheHostDiffersInItsNumberAlone) {
  const ProcessId mine = this_process().value();
  const testing::ProcessEnd end = testing::in_child([&] {
    const auto own = this_process();
    const bool right = own && own->pid != mine.pid && own->boot == mine.boot &&
                       own->pid_namespace == mine.pid_namespace && own->started >= mine.started;
    return right ? 0 : 1;
  });
  EXPECT_EQ(end, testing::ProcessEnd{.code = 0});
}

TEST(ProcessIdTest, TheStartOfAnotherProcessIsKnownUntilItIsGone) {
  EXPECT_EQ(start_of(static_cast<std::uint64_t>(::getpid())), this_process()->started);
  auto child = testing::Process::forked([] { return ::pause(); }).value();
  const auto pid = static_cast<std::uint64_t>(child.pid());
  const auto started = start_of(pid);
  child.kill_now();
  ASSERT_TRUE(started) << started.error().message;
  EXPECT_GE(*started, this_process()->started);
  const auto gone = start_of(pid);
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().code, ErrorCode::kNotFound);
}

TEST(ProcessIdTest, TheBootIdIsAUuid) {
  const std::string id = boot_id().value();
  ASSERT_EQ(id.size(), 36U);
  for (const std::size_t dash : {8, 13, 18, 23}) EXPECT_EQ(id[dash], '-') << id;
}

TEST(ProcessIdTest, ANamespaceThatDoesNotExistIsAnErrorThatNamesIt) {
  EXPECT_TRUE(namespace_id("net"));
  const auto none = namespace_id("none");
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().message.find("/proc/self/ns/none"), std::string::npos) << none.error().message;
}

}  // namespace
}  // namespace p2p
