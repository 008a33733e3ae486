// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/nccl_net/trial.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "support/frequent_signals.h"

namespace p2p::nccl_net {
namespace {

int alarms = 0;
int pipe_ends[2];

TEST(ChildProcess, IsWaitedForThroughSignalsOfTheProgram) {
  ASSERT_EQ(::pipe(pipe_ends), 0);
  const auto end = [] {
    const p2p::testing::FrequentSignals beside(std::chrono::milliseconds{1}, [](int /*signal*/) {
      if (++alarms == 20 && ::write(pipe_ends[1], "", 1) != 1) std::abort();
    });
    return run_in_child(std::chrono::minutes{1}, [] {
      char byte = 0;
      if (::read(pipe_ends[0], &byte, 1) != 1) std::abort();
    });
  }();
  for (const int each : pipe_ends) ::close(each);
  ASSERT_TRUE(end) << end.error().message;
  EXPECT_TRUE(end->in_time);
  EXPECT_TRUE(!end->crashed && end->code == 0);
}

/// What a program does with SIGCHLD, for a while.
class OnChild {
 public:
  explicit OnChild(void (*handler)(int)) : before_(std::signal(SIGCHLD, handler)) {}
  ~OnChild() { std::signal(SIGCHLD, before_); }
  OnChild(const OnChild&) = delete;
  OnChild& operator=(const OnChild&) = delete;

 private:
  void (*before_)(int);
};

TEST(ChildProcess, TellsACrashWhereTheProgramLeavesNoStatus) {
  const OnChild ignored(SIG_IGN);
  const auto crash = run_in_child(std::chrono::minutes{1}, [] { ::kill(::getpid(), SIGKILL); });
  ASSERT_TRUE(crash) << crash.error().message;
  EXPECT_TRUE(crash->in_time && crash->crashed);
  const auto returns = run_in_child(std::chrono::minutes{1}, [] {});
  ASSERT_TRUE(returns) << returns.error().message;
  EXPECT_TRUE(returns->in_time && !returns->crashed && returns->code == 0);
  const auto exits = run_in_child(std::chrono::minutes{1}, [] { std::exit(0); });
  ASSERT_TRUE(exits) << exits.error().message;
  EXPECT_TRUE(exits->in_time && !exits->crashed && exits->code == 1);
}

TEST(ChildProcess, TellsWhichSignalItWas) {
  const auto crash = run_in_child(std::chrono::minutes{1}, [] { ::kill(::getpid(), SIGKILL); });
  ASSERT_TRUE(crash) << crash.error().message;
  EXPECT_TRUE(crash->in_time && crash->crashed && crash->code == SIGKILL);
}

}  // namespace
}  // namespace p2p::nccl_net
