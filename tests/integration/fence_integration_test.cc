// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "support/eventually.h"
#include "support/hex.h"
#include "support/peer.h"

// Memory that was handed back stays untouched, whatever the peer's threads were doing when its connection
// ended.
namespace p2p::testing::fence {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kSize = std::size_t{1} << 20;
constexpr std::chrono::milliseconds kDelay{kSanitized ? 8000 : 5000};

class FenceTest : public ::testing::Test {
 protected:
  FenceTest() : pair({.transport = "cma"}), own(pair.endpoint, kSize) {}

  /// The peer's write is past every check, and not yet in the kernel.
  void begin_late_write(const std::string& command) {
    theirs = pair.peer.region(kSize);
    pair.peer.number(fmt::format("fill {} 0 {} 5", theirs.index, kSize));
    const std::uint64_t before = pair.peer.number(fmt::format("delay_copies {}", kDelay.count()));
    pair.peer.number(command);
    ASSERT_TRUE(eventually(
        [&] { return pair.peer.number(fmt::format("delay_copies {}", kDelay.count())) > before; }));
  }

  std::string write_command() {
    const auto id =
        pair.peer.number(fmt::format("import {} {}", pair.at_peer, to_hex(own.region.descriptor())));
    return fmt::format("write {} 0 0 {} {} {}", pair.at_peer, kSize, id,
                       reinterpret_cast<std::uintptr_t>(own.pages.data()));
  }

  bool untouched() { return difference({own.pages.data(), kSize}, 7) == std::nullopt; }

  Pair pair;
  OwnRegion own;
  PeerRegion theirs;
};

TEST_F(FenceTest, MemoryIsNotReleasedWhileAPeerMayStillWrite) {
  begin_late_write(write_command());
  if (HasFatalFailure()) return;
  const auto start = Clock::now();
  static_cast<void>(pair.connection.close(0ms));
  const Status early = own.region.release(500ms);
  ASSERT_TRUE(is_error(early, {ErrorCode::kTimedOut}));
  EXPECT_NE(early.error().message.find("the peer may still write here"), std::string::npos);
  EXPECT_TRUE(is_ok(own.region.release(kDelay + kLimit))) << "once the peer is through";
  EXPECT_GE(Clock::now() - start, kDelay / 2) << "it was not through before";
  fill(own.pages.bytes(), 7);
  EXPECT_TRUE(is_ok(status_of(pair.peer.call("delay_copies 0"))));
  std::this_thread::sleep_for(200ms);  // for what may not come to come
  EXPECT_TRUE(untouched());
}

TEST_F(FenceTest, TheEndOfThePeersProcessEndsTheWait) {
  begin_late_write(write_command());
  if (HasFatalFailure()) return;
  static_cast<void>(pair.connection.close(0ms));
  ASSERT_TRUE(is_error(own.region.release(100ms), {ErrorCode::kTimedOut}));
  pair.peer.process().kill_now();
  const auto start = Clock::now();
  EXPECT_TRUE(is_ok(own.region.release(kLimit)));
  EXPECT_LT(Clock::now() - start, kMargin);
}

TEST_F(FenceTest, AStoppedPeerHoldsTheMemoryUntilItGoesOn) {
  begin_late_write(write_command());
  if (HasFatalFailure()) return;
  pair.peer.process().signal(SIGSTOP);
  static_cast<void>(pair.connection.close(0ms));
  EXPECT_TRUE(is_error(own.region.release(kDelay + 500ms), {ErrorCode::kTimedOut}));
  pair.peer.process().signal(SIGCONT);
  EXPECT_TRUE(is_ok(own.region.release(kLimit)));
  fill(own.pages.bytes(), 7);
  std::this_thread::sleep_for(200ms);
  EXPECT_TRUE(untouched());
}

TEST_F(FenceTest, AReceiveFailsOnceNothingComesToItAnyMore) {
  const Transfer receive = pair.connection.recv(own.span(0, kSize));
  begin_late_write(fmt::format("send {} 0 0 {}", pair.at_peer, kSize));
  if (HasFatalFailure()) return;
  static_cast<void>(pair.connection.close(0ms));
  const Status failed = receive.wait(kLimit);
  ASSERT_FALSE(failed);
  // Longer than the keepalive time it does not last, and then it says so.
  EXPECT_NE(failed.error().message.find("may still write here"), std::string::npos) << failed.error().message;
  EXPECT_TRUE(is_error(own.region.release(100ms), {ErrorCode::kTimedOut}));
  EXPECT_TRUE(is_ok(own.region.release(kDelay + kLimit)));
}

}  // namespace
}  // namespace p2p::testing::fence
