// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Systems that lack a call, or forbid it: imitated by a filter that both processes have.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

#include "support/forbid.h"
#include "support/peer.h"
#include "support/transports.h"

namespace p2p::testing::old_kernel {
namespace {

std::chrono::microseconds processor_time() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return std::chrono::seconds(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         std::chrono::microseconds(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

class OldKernelTest : public OverTransport {};
P2P_OVER_TRANSPORTS(OldKernelTest);

TEST_P(OldKernelTest, WithoutEpollPwait2WorkersSleepAndTransfersGo) {
  if (!forbid(SYS_epoll_pwait2, ENOSYS)) GTEST_SKIP() << "no filter can be set here";
  ASSERT_EQ(::syscall(SYS_epoll_pwait2, -1, nullptr, 0, nullptr, nullptr, 0), -1);
  ASSERT_EQ(errno, ENOSYS);
  constexpr std::size_t kSize = 5'000'017;
  Pair pair(EndpointPlan{.transport = GetParam()});
  OwnRegion own(pair.endpoint, kSize);
  const PeerRegion theirs = pair.peer.region(kSize);
  const auto id = pair.connection.import_region(theirs.descriptor);
  ASSERT_TRUE(is_ok(status_of(id)));
  const RemoteSpan there{*id, theirs.descriptor.address, kSize};
  fill(own.pages.bytes(), 1);
  EXPECT_TRUE(is_ok(pair.connection.write(own.span(0, kSize), there).wait(kLimit)));
  EXPECT_TRUE(is_ok(status_of(pair.peer.call(fmt::format("check {} 0 {} 1", theirs.index, kSize)))));
  fill(own.pages.bytes(), 2);
  EXPECT_TRUE(is_ok(pair.connection.read(own.span(0, kSize), there).wait(kLimit)));
  EXPECT_FALSE(difference(own.pages.bytes(), 1));
  EXPECT_TRUE(is_ok(pair.connection.notify("a word").wait(kLimit)));
  // A worker that spins takes the whole of a second, so that half of it tells the two apart on any machine.
  const auto before = processor_time();
  EXPECT_FALSE(pair.endpoint.accept(std::chrono::seconds(1)));
  EXPECT_LT(processor_time() - before, std::chrono::milliseconds(500)) << "while nothing was to be done";
}

}  // namespace
}  // namespace p2p::testing::old_kernel
