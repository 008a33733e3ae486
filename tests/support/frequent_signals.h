// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <sys/time.h>

#include <chrono>
#include <csignal>

namespace p2p::testing {

/// While it lives this process has a SIGALRM so often, as beside a profiler. One at a time.
class FrequentSignals {
 public:
  FrequentSignals(std::chrono::microseconds interval, void (*handler)(int))
      : before_(std::signal(SIGALRM, handler)) {
    const timeval each{.tv_sec = 0, .tv_usec = interval.count()};
    const itimerval often{.it_interval = each, .it_value = each};
    EXPECT_EQ(::setitimer(ITIMER_REAL, &often, nullptr), 0);
  }
  ~FrequentSignals() {
    const itimerval never{};
    ::setitimer(ITIMER_REAL, &never, nullptr);
    std::signal(SIGALRM, before_);
  }
  FrequentSignals(const FrequentSignals&) = delete;
  FrequentSignals& operator=(const FrequentSignals&) = delete;

 private:
  void (*before_)(int);
};

}  // namespace p2p::testing
