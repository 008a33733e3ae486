// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// The clock that administrators and NTP set jumps: nothing here waits by it.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <ctime>

#include "support/peer.h"
#include "support/transports.h"

#if !defined(P2P_ASAN) && !defined(P2P_TSAN)  // they have this function, too
namespace p2p::testing::clock {
namespace {

using namespace std::chrono_literals;

std::atomic<std::time_t> set_by{0};  // seconds

int real_gettime(clockid_t which, timespec* now) {
  static auto* const real =
      reinterpret_cast<int (*)(clockid_t, timespec*)>(::dlsym(RTLD_NEXT, "clock_gettime"));
  return real(which, now);
}

}  // namespace
}  // namespace p2p::testing::clock

// In place of the C library's, for the whole program.
extern "C" __attribute__((visibility("default"))) int clock_gettime(clockid_t which, timespec* now) noexcept {
  const int done = p2p::testing::clock::real_gettime(which, now);
  if (done == 0 && which == CLOCK_REALTIME) now->tv_sec += p2p::testing::clock::set_by.load();
  return done;
}

namespace p2p::testing::clock {
namespace {

using Clock = std::chrono::steady_clock;

class ClockTest : public OverTransport {
 protected:
  ~ClockTest() override { set_by = 0; }

  /// Forth or back, under all that is under way.
  static void set(std::chrono::hours by) {
    const auto before = std::chrono::system_clock::now();
    set_by += std::chrono::seconds(by).count();
    ASSERT_GT(std::chrono::abs(std::chrono::system_clock::now() - before), 1h) << "it is not set here";
  }
};
INSTANTIATE_TEST_SUITE_P(Over, ClockTest, ::testing::Values("tcp", "tcp_tls", "cma"), transport_name);

TEST_P(ClockTest, MayBeSetAtAnyTime) {
  Pair pair(plan_over(GetParam()));
  OwnRegion own(pair.endpoint, 1 << 20);
  const PeerRegion theirs = pair.peer.region(1 << 20);
  const auto id = pair.connection.import_region(theirs.descriptor);
  ASSERT_TRUE(is_ok(status_of(id)));
  for (const std::chrono::hours by : {+48h, -96h, +1000h, -2000h}) {
    const Transfer waiting = pair.connection.recv(own.span(0, 64));
    set(by);
    const auto start = Clock::now();
    EXPECT_TRUE(is_error(waiting.wait(50ms), {ErrorCode::kTimedOut}));
    EXPECT_GE(Clock::now() - start, 50ms);
    EXPECT_TRUE(is_error(status_of(pair.endpoint.accept(50ms)), {ErrorCode::kTimedOut}));
    EXPECT_TRUE(is_ok(
        pair.connection.write(own.span(0, 1 << 20), {*id, theirs.descriptor.address, 1 << 20}).wait(kLimit)));
    auto another = pair.endpoint.connect("127.0.0.1", pair.peer.port(), kLimit);
    ASSERT_TRUE(is_ok(status_of(another)));
    EXPECT_TRUE(is_ok(another->close(kLimit)));
    EXPECT_EQ(in_child([] { return 0; }), ProcessEnd{.code = 0});
    waiting.cancel();
    EXPECT_TRUE(is_error(waiting.wait(kLimit), {ErrorCode::kCancelled}));
    EXPECT_LT(Clock::now() - start, kLimit);
  }
  EXPECT_TRUE(is_ok(pair.connection.status()));
  const Transfer waiting = pair.connection.recv(own.span(0, 64));
  set(-48h);
  pair.peer.process().kill_now();
  EXPECT_TRUE(is_error(waiting.wait(kLimit), {ErrorCode::kPeerGone}));
}

}  // namespace
}  // namespace p2p::testing::clock
#endif
