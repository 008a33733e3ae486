// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/process_end.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <csignal>

namespace p2p {
namespace {

std::sig_atomic_t volatile signals = 0;

// As a profiler does: a signal with a handler so often.
class OftenInterrupted {
 public:
  OftenInterrupted() {
    struct sigaction action{};
    action.sa_handler = [](int) { signals = signals + 1; };
    action.sa_flags = SA_RESTART;
    ::sigaction(SIGALRM, &action, &before_);
    const itimerval often{.it_interval = {.tv_sec = 0, .tv_usec = 20},
                          .it_value = {.tv_sec = 0, .tv_usec = 20}};
    ::setitimer(ITIMER_REAL, &often, nullptr);
  }
  ~OftenInterrupted() {
    const itimerval never{};
    ::setitimer(ITIMER_REAL, &never, nullptr);
    ::sigaction(SIGALRM, &before_, nullptr);
  }

 private:
  struct sigaction before_{};
};

TEST(ProcessEnd, ASignalIsNotTakenForTheEndOfThePeer) {
  std::array<int, 2> pair{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()), 0);
  const UniqueFd here(pair[0]);
  UniqueFd there(pair[1]);
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  ASSERT_TRUE(process);
  {
    const OftenInterrupted interrupted;
    while (signals < 5000) ASSERT_TRUE(is_open(process, here)) << "after " << signals << " signals";
  }
  there = UniqueFd();
  EXPECT_FALSE(is_open(process, here));
}

}  // namespace
}  // namespace p2p
