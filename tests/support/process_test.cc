// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "support/process.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <sstream>
#include <string>
#include <utility>

namespace p2p::testing {
namespace {

using namespace std::chrono_literals;

std::string text(const ProcessEnd& end) {
  std::ostringstream out;
  out << end;
  return out.str();
}

TEST(ProcessTest, TellsHowAChildEnded) {
  EXPECT_EQ(in_child([] { return 0; }), ProcessEnd{.code = 0});
  EXPECT_EQ(in_child([] { return 7; }), ProcessEnd{.code = 7});
  EXPECT_EQ(text(in_child([] { return ::raise(SIGTERM); })), "signal 15");
  EXPECT_EQ(text(in_child([] { return ::pause(); }, 0ms)), "not ended");
}

TEST(ProcessTest, AnEndIsKnownAgain) {
  auto child = Process::forked([] { return 3; }).value();
  EXPECT_EQ(child.wait(kLimit).code, 3);
  EXPECT_EQ(child.wait(0ms).code, 3);
  EXPECT_EQ(child.pid(), -1);
  child.kill_now();
  EXPECT_EQ(std::move(child).wait(0ms).code, 3);
}

TEST(ProcessTest, AFunctionSaysLines) {
  auto child = Process::forked([](const Process::Say& say) {
                 say("one");
                 say(std::string(200000, 'x'));
                 return 0;
               }).value();
  EXPECT_EQ(child.read_line(kLimit).value_or(""), "one");
  EXPECT_EQ(child.read_line(kLimit).value_or("").size(), 200000U);
  EXPECT_EQ(child.read_line(kLimit).error().code, ErrorCode::kPeerGone);
}

TEST(ProcessTest, AProgramHearsAndAnswers) {
  auto cat = Process::spawn({"cat"}).value();
  ASSERT_TRUE(cat.write_line("here and back"));
  EXPECT_EQ(cat.read_line(kLimit).value_or(""), "here and back");
  EXPECT_EQ(cat.read_line(0ms).error().code, ErrorCode::kTimedOut);
  cat.kill_now();
  EXPECT_EQ(cat.wait(0ms), ProcessEnd{.signal = SIGKILL});
  EXPECT_EQ(cat.read_line(kLimit).error().code, ErrorCode::kPeerGone);
  EXPECT_FALSE(cat.write_line("to nobody"));
}

TEST(ProcessTest, BlocksHoldAnyBytes) {
  auto cat = Process::spawn({"cat"}).value();
  ASSERT_TRUE(cat.write_line("5\n\nab\n\n0"));  // a block of five bytes, then an empty one
  EXPECT_EQ(cat.read_block(kLimit).value_or(""), "\nab\n\n");
  EXPECT_EQ(cat.read_block(kLimit).value_or("not"), "");
  ASSERT_TRUE(cat.write_line("9\nab"));
  EXPECT_EQ(cat.read_block(1ms).error().code, ErrorCode::kTimedOut);
}

TEST(ProcessTest, AProgramHasWhatIsPassed) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  auto shell = Process::spawn({"sh", "-c", "echo said >&3"}, ends[1]).value();
  EXPECT_EQ(shell.wait(kLimit), ProcessEnd{.code = 0});
  std::array<char, 16> said{};
  EXPECT_EQ(::recv(ends[0], said.data(), said.size(), MSG_DONTWAIT), 5);
  for (const int end : ends) ::close(end);
}

TEST(ProcessTest, AStoppedChildGoesOnWhenItIsTold) {
  auto cat = Process::spawn({"cat"}).value();
  cat.stop();
  ASSERT_TRUE(cat.write_line("late"));
  EXPECT_EQ(cat.read_line(0ms).error().code, ErrorCode::kTimedOut);
  cat.go_on();
  EXPECT_EQ(cat.read_line(kLimit).value_or(""), "late");
}

TEST(ProcessTest, ProgramsThatAreNotThereAreAnError) {
  EXPECT_FALSE(run({"/no/such/program"}));
  EXPECT_TRUE(run({"true"}));
}

}  // namespace
}  // namespace p2p::testing
