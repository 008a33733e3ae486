// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <optional>
#include <utility>

#include "support/peer.h"
#include "support/sanitizer.h"
#include "support/transports.h"

// A child of the process that made an endpoint has its memory and its descriptors, and none of its threads.
namespace p2p::testing {
namespace {

constexpr std::size_t kSize = 100'000;

class ForkTest : public OverTransport {};
P2P_OVER_TRANSPORTS(ForkTest);

/// What `child` returns in a child process; -1 if it did not end by itself.
int in_child(const std::function<int()>& child) {
  const pid_t process = ::fork();
  if (process == 0) {
    ::alarm(20);
    ::_exit(child());
  }
  int status = 0;
  if (process < 0 || ::waitpid(process, &status, 0) != process || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

bool refused(const Status& status) {
  return !status && status.error().code == ErrorCode::kUnavailable &&
         status.error().message.find("forked") != std::string::npos;
}

TEST_P(ForkTest, AChildIsToldAndHarmsNothing) {
#if defined(P2P_TSAN)
  // It does not lock its allocator at a fork (before LLVM 19), which another thread may be in, and forbids
  // threads in the child.
  GTEST_SKIP() << "the thread sanitizer makes no promise to the child of a process with threads";
#endif
  std::optional<Pair> pair(std::in_place, EndpointPlan{.transport = GetParam()});
  std::optional<OwnRegion> own(std::in_place, pair->endpoint, kSize);
  const PeerRegion theirs = pair->peer.region(kSize);
  const auto id = pair->connection.import_region(theirs.descriptor);
  ASSERT_TRUE(is_ok(status_of(id)));
  const RemoteSpan to{*id, theirs.descriptor.address, kSize};
  const auto write = [&] { return pair->connection.write(own->span(0, kSize), to).wait(kLimit); };
  ASSERT_TRUE(is_ok(write()));
  const int failed = in_child([&] {
    int wrong = 0;
    const auto expect = [&wrong](bool right) { wrong += right ? 0 : 1; };
    expect(refused(write()));
    expect(refused(pair->connection.send(own->span(0, 8)).wait(kLimit)));
    expect(refused(pair->connection.recv(own->span(0, 8)).wait(kLimit)));
    expect(refused(pair->connection.notify("from the child").wait(kLimit)));
    expect(refused(status_of(pair->connection.import_region(theirs.descriptor))));
    expect(refused(pair->connection.close(kLimit)));
    expect(refused(own->region.release(kLimit)));
    expect(refused(status_of(pair->endpoint.register_memory(own->pages.data(), kSize))));
    expect(refused(status_of(pair->endpoint.accept(kLimit))));
    expect(refused(status_of(pair->endpoint.connect("127.0.0.1", pair->peer.port(), kLimit))));
    own->region = MemoryRegion();
    pair->connection = Connection();
    pair->endpoint = make_endpoint({.transport = GetParam()});  // one of its own works
    expect(static_cast<bool>(pair->endpoint.register_memory(own->pages.data(), kSize)));
    return wrong;
  });
  EXPECT_EQ(failed, 0);
  EXPECT_TRUE(is_ok(write())) << "the parent's goes on";
  EXPECT_TRUE(is_ok(pair->connection.notify("from the parent").wait(kLimit)));
}

}  // namespace
}  // namespace p2p::testing
