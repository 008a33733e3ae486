// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <sched.h>

#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "p2p/result.h"
#include "support/process.h"

namespace p2p::testing {

/// A host whose only interface is loopback, and which can lose its routes: a network namespace of one thread,
/// gone with it. Nothing but the clock sends a lost segment again there. Takes root.
class LonelyHost {
 public:
  /// Runs `test` on one; skips it where none can be made.
  static void run(const std::function<void()>& test) {
    std::thread([&] {
      if (!make()) GTEST_SKIP() << "a network namespace of its own takes root";
      test();
    }).join();
  }

  /// No address has a route any more, its own included.
  static Status lose_routes() {
    Status lost;
    for (const char* priority : {"32767", "32766", "0"}) {
      if (lost) lost = p2p::testing::run({"ip", "rule", "del", "pref", priority});
    }
    return lost;
  }

 private:
  static bool make() {
    if (::unshare(CLONE_NEWNET) != 0 || !p2p::testing::run({"ip", "link", "set", "lo", "up"})) return false;
    for (const char* name : {"tcp_sack", "tcp_recovery", "tcp_early_retrans"}) {
      std::ofstream(std::string("/proc/sys/net/ipv4/") + name) << "0\n";
    }
    return true;
  }
};

}  // namespace p2p::testing
