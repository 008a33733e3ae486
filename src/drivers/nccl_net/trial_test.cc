// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/nccl_net/trial.h"

#include <gtest/gtest.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

namespace p2p::nccl_net {
namespace {

int alarms = 0;
int pipe_ends[2];

TEST(ChildProcess, IsWaitedForThroughSignalsOfTheProgram) {
  ASSERT_EQ(::pipe(pipe_ends), 0);
  const auto before = std::signal(SIGALRM, [](int /*signal*/) {
    if (++alarms == 20) static_cast<void>(::write(pipe_ends[1], "", 1));
  });
  const itimerval often{.it_interval = {0, 1000}, .it_value = {0, 1000}};
  ASSERT_EQ(::setitimer(ITIMER_REAL, &often, nullptr), 0);
  const auto end = run_in_child(std::chrono::minutes{1}, [] {
    char byte = 0;
    static_cast<void>(::read(pipe_ends[0], &byte, 1));
  });
  const itimerval never{};
  ::setitimer(ITIMER_REAL, &never, nullptr);
  std::signal(SIGALRM, before);
  for (const int each : pipe_ends) ::close(each);
  ASSERT_TRUE(end) << end.error().message;
  EXPECT_TRUE(end->in_time);
  EXPECT_TRUE(WIFEXITED(end->status) && WEXITSTATUS(end->status) == 0);
}

}  // namespace
}  // namespace p2p::nccl_net
