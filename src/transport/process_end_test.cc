// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/process_end.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>

#include "support/frequent_signals.h"

namespace p2p {
namespace {

std::sig_atomic_t volatile signals = 0;

TEST(ProcessEnd, ASignalIsNotTakenForTheEndOfThePeer) {
  std::array<int, 2> pair{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()), 0);
  const UniqueFd here(pair[0]);
  UniqueFd there(pair[1]);
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  ASSERT_TRUE(process);
  {
    const p2p::testing::FrequentSignals beside(std::chrono::microseconds{20},
                                               [](int) { signals = signals + 1; });
    while (signals < 5000) ASSERT_TRUE(is_open(process, here)) << "after " << signals << " signals";
  }
  there = UniqueFd();
  EXPECT_FALSE(is_open(process, here));
}

}  // namespace
}  // namespace p2p
