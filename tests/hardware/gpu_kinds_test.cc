// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// GPU memory that has no handle for other processes, and GPUs that the other side does not see: served
// another way, or refused with the reason.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "gpu_memory.h"
#include "gpu_pair.h"
#include "support/peer.h"

namespace p2p::testing {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::byte kUntouched{0xee};

struct PrivateKind {
  const char* name;
  const char* reason;
};
constexpr std::array kPrivateKinds{PrivateKind{"mapped", "was mapped with cuMemMap"},
                                   PrivateKind{"pooled", "comes from a CUDA memory pool"}};

class GpuKinds : public GpuTest {
 protected:
  bool over_tcp() const { return std::string(config().transport) == "tcp"; }
  std::string right_place(const PrivateKind& kind) const {
    return fmt::format("{}:{}", kind.name, config().two ? 1 : 0);
  }
};
P2P_OVER_GPUS(GpuKinds);

/// Many small blocks, then a long one; both lie across memories that were mapped side by side.
void check(GpuPair& pair, const std::string& left_place, const std::string& right_place) {
  SCOPED_TRACE(left_place + " and " + right_place);
  write_and_read(pair, left_place, right_place, scattered(4000, 7, 5), 5);
  write_and_read(pair, left_place, right_place, {{9, 12, 40 * kMiB + 3}}, 5);
}

TEST_P(GpuKinds, AsTheLocalSideLikeAnyOther) {
  for (const PrivateKind& kind : kPrivateKinds) {
    check(pair(), fmt::format("{}:0", kind.name), config().right_place());
  }
}

TEST_P(GpuKinds, AsTheRemoteSideByTcp) {
  if (!over_tcp()) GTEST_SKIP() << "cuda_ipc has no handle for it";
  for (const PrivateKind& kind : kPrivateKinds) check(pair(), config().left_place(), right_place(kind));
}

TEST_P(GpuKinds, AsTheRemoteSideCudaIpcAloneSaysWhyNot) {
  if (over_tcp()) GTEST_SKIP() << "tcp needs no handle";
  GpuPair& both = pair();
  const SideMemory mine(both.left, config().left_place(), kMiB);
  for (const PrivateKind& kind : kPrivateKinds) {
    const SideMemory theirs(both.right, right_place(kind), kMiB);
    theirs.set(kUntouched);
    const Piece piece{mine.index(), theirs.imported_by(both.left), 0, theirs.address(0), kMiB};
    const Status status = both.left.transfer("write", {&piece, 1});
    ASSERT_TRUE(is_error(status, {ErrorCode::kUnavailable})) << kind.name;
    EXPECT_NE(status.error().message.find(kind.reason), std::string::npos) << status.error().message;
    EXPECT_TRUE(theirs.is_set(0, kMiB, kUntouched));
  }
  check(both, config().left_place(), config().right_place());
}

// With all transports to choose from the program need not know what memory it has.
TEST_P(GpuKinds, IsServedWhereTransportsAreChosen) {
  if (over_tcp()) GTEST_SKIP() << "done once";
  GpuPair both({}, config().left_place(), config().right_place());
  for (const PrivateKind& kind : kPrivateKinds) check(both, config().left_place(), right_place(kind));
}

TEST_P(GpuKinds, ARangeWithAGapIsRefused) {
  if (over_tcp()) GTEST_SKIP() << "cuda_ipc alone looks for that";
  const auto made = pair().left.call(fmt::format("memory gapped:0 {} 0", 12 * kMiB));
  ASSERT_TRUE(is_error(status_of(made), {ErrorCode::kUnavailable}));
  EXPECT_NE(made.error().message.find("no memory of CUDA device 0 is mapped at"), std::string::npos)
      << made.error().message;
}

TEST_P(GpuKinds, MappedMemoryThatWasUnmapped) {
  const auto made = own_pair();
  const SideMemory mine(made->left, "mapped:0", kMiB);
  const SideMemory theirs(made->right, config().right_place(), kMiB);
  const Piece piece{mine.index(), theirs.imported_by(made->left), 0, theirs.address(0), kMiB};
  ASSERT_TRUE(is_ok(made->left.transfer("write", {&piece, 1})));
  ASSERT_TRUE(is_ok(status_of(made->left.call(fmt::format("free_only {}", mine.index())))));
  const Status status = made->left.transfer("write", {&piece, 1});
  ASSERT_TRUE(is_error(status, {ErrorCode::kNotFound}));
  EXPECT_NE(status.error().message.find("freed"), std::string::npos) << status.error().message;
}

// As two containers on one host. Whether CUDA's handles open there is the driver's affair: if not, it is
// found out when they connect, and said.
TEST(GpuProbe, PeersInTwoPidNamespacesReachEachOther) {
  if (gpu_count() == 0) GTEST_SKIP() << "no CUDA device";
  if (!run({"unshare", "--pid", "--fork", "--mount-proc", "true"})) {
    GTEST_SKIP() << "no PID namespaces can be made here";
  }
  Side left({});
  Side right({.own_pids = true});
  const std::string there = gpu_count() > 1 ? "cuda:1" : "cuda:0";
  const SideMemory mine(left, "cuda:0", kMiB);
  const SideMemory theirs(right, there, kMiB);
  const SideMemory host(right, "host", kMiB);
  connect(left, right);
  const auto route = left.call("route cuda cuda");
  ASSERT_TRUE(is_ok(status_of(route)));
  std::printf("figure pid_namespaces route=[%s]\n", route->c_str());
  if (!route->starts_with("cuda_ipc ")) {
    EXPECT_TRUE(route->starts_with("tcp ")) << *route;
    EXPECT_NE(route->find("device memory cannot be shared with the peer"), std::string::npos) << *route;
  }
  const auto to_host = left.call("route cuda host");
  ASSERT_TRUE(is_ok(status_of(to_host)));
  EXPECT_TRUE(to_host->starts_with("tcp ")) << *to_host;
  EXPECT_NE(to_host->find("another PID namespace"), std::string::npos) << *to_host;
  for (const SideMemory* const memory : {&theirs, &host}) {
    mine.fill(4);
    memory->set(kUntouched);
    const Piece piece{mine.index(), memory->imported_by(left), 0, memory->address(0), kMiB};
    ASSERT_TRUE(is_ok(left.transfer("write", {&piece, 1})));
    EXPECT_TRUE(memory->holds_pattern(0, kMiB, 4, 0));
    mine.set(kUntouched);
    ASSERT_TRUE(is_ok(left.transfer("read", {&piece, 1})));
    EXPECT_TRUE(mine.holds_pattern(0, kMiB, 4, 0));
  }
}

// Each side sees one GPU, and not the other's.
TEST(GpuProbe, AHiddenGpuIsReachedByTcp) {
  if (gpu_count() < 2) GTEST_SKIP() << "needs two GPUs";
  Side left({.visible = "0"});
  Side right({.visible = "1"});
  const SideMemory mine(left, "cuda:0", kMiB);
  const SideMemory theirs(right, "cuda:0", kMiB);
  connect(left, right);
  for (Side* const side : {&left, &right}) {
    const auto route = side->call("route cuda cuda");
    ASSERT_TRUE(is_ok(status_of(route)));
    EXPECT_TRUE(route->starts_with("tcp ")) << *route;
    EXPECT_NE(route->find("not visible to this process"), std::string::npos) << *route;
  }
  mine.fill(4);
  theirs.set(kUntouched);
  const Piece piece{mine.index(), theirs.imported_by(left), 0, theirs.address(0), kMiB};
  ASSERT_TRUE(is_ok(left.transfer("write", {&piece, 1})));
  EXPECT_TRUE(theirs.holds_pattern(0, kMiB, 4, 0));
}

}  // namespace
}  // namespace p2p::testing
