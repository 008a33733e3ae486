// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// GPU memory of every kind, and GPUs that the other side does not see: served the best way there is, or
// refused with the reason.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "gpu_memory.h"
#include "gpu_pair.h"
#include "support/eventually.h"
#include "support/peer.h"

namespace p2p::testing {
namespace {

struct PrivateKind {
  const char* name;
  const char* reason;
};
constexpr std::array kPrivateKinds{PrivateKind{"private", "made without a handle type"},
                                   PrivateKind{"pooled", "comes from a CUDA memory pool"},
                                   PrivateKind{"open_pool", "comes from a CUDA memory pool"}};
constexpr std::array kPools{"pooled", "open_pool"};
constexpr std::array kMappedKinds{"mapped", "chunks"};

class GpuKinds : public GpuTest {
 protected:
  bool over_tcp() const { return std::string(config().transport) == "tcp"; }
  std::string right_place(const PrivateKind& kind) const { return right_place(kind.name); }
  std::string right_place(const char* kind) const { return fmt::format("{}:{}", kind, config().two ? 1 : 0); }
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
  for (const char* const kind : kMappedKinds)
    check(pair(), fmt::format("{}:0", kind), config().right_place());
}

// By cuda_ipc alone: nothing else could have moved it.
TEST_P(GpuKinds, ChunksThatCanBeExportedAsTheRemoteSide) {
  for (const char* const kind : kMappedKinds) {
    check(pair(), config().left_place(), right_place(kind));
    check(pair(), fmt::format("{}:0", kind), right_place(kind));
    check(pair(), "host", right_place(kind));
  }
}

// Other memory in the middle of a region, behind the engine's back.
TEST_P(GpuKinds, ChunksThatWereReplacedAreNotRead) {
  if (over_tcp()) GTEST_SKIP() << "the owner looks before each copy";
  constexpr std::size_t kSize = 40 * kMiB;
  for (const char* const how : {"remap", "unmap"}) {
    SCOPED_TRACE(how);
    const auto made = own_pair();
    const SideMemory mine(made->left, config().left_place(), kSize);
    const SideMemory theirs(made->right, right_place("chunks"), kSize);
    const std::uint32_t id = theirs.imported_by(made->left);
    const Piece piece{mine.index(), id, 0, theirs.address(0), kSize};
    ASSERT_TRUE(is_ok(made->left.transfer("read", {&piece, 1})));
    ASSERT_TRUE(is_ok(status_of(made->right.call(fmt::format("{} {} {}", how, theirs.index(), 20 * kMiB)))));
    Status status;
    EXPECT_TRUE(eventually([&] { return !(status = made->left.transfer("read", {&piece, 1})); }));
    ASSERT_TRUE(is_error(status, {ErrorCode::kNotFound}));
    EXPECT_NE(status.error().message.find("freed or unmapped"), std::string::npos) << status.error().message;
    if (std::string(how) == "unmap") continue;
    const auto again = made->right.call(fmt::format("register_again {} {}", theirs.index(), kSize));
    ASSERT_TRUE(is_ok(status_of(again)));
    const Piece anew{mine.index(), static_cast<std::uint32_t>(made->left.number("import " + *again)), 0,
                     theirs.address(0), kSize};
    theirs.fill(8);
    ASSERT_TRUE(is_ok(made->left.transfer("read", {&anew, 1})));
    EXPECT_TRUE(mine.holds_pattern(0, kSize, 8, 0));
  }
}

TEST_P(GpuKinds, AsTheRemoteSideByTcp) {
  if (!over_tcp()) GTEST_SKIP() << "cuda_ipc has no handle for it";
  for (const PrivateKind& kind : kPrivateKinds) check(pair(), config().left_place(), right_place(kind));
}

// The owner copies, from and to this side's memory.
TEST_P(GpuKinds, PrivateAsTheRemoteSideOfMemoryThatIsShared) {
  for (const PrivateKind& kind : kPrivateKinds) {
    for (const char* const mine : {"cuda:0", "mapped:0", "chunks:0"}) check(pair(), mine, right_place(kind));
  }
}

TEST_P(GpuKinds, HostAndPrivateMemoryCudaIpcAloneSaysWhyNot) {
  if (over_tcp()) GTEST_SKIP() << "tcp needs no handle";
  GpuPair& both = pair();
  const SideMemory mine(both.left, "host", kMiB);
  for (const PrivateKind& kind : kPrivateKinds) {
    const SideMemory theirs(both.right, right_place(kind), kMiB);
    theirs.set(kUntouched);
    const Piece piece{mine.index(), theirs.imported_by(both.left), 0, theirs.address(0), kMiB};
    const Status status = both.left.transfer("write", {&piece, 1});
    ASSERT_TRUE(is_error(status, {ErrorCode::kUnavailable})) << kind.name;
    EXPECT_NE(status.error().message.find(kind.reason), std::string::npos) << status.error().message;
    EXPECT_NE(status.error().message.find("nor can the memory on this side"), std::string::npos)
        << status.error().message;
    EXPECT_TRUE(theirs.is_set(0, kMiB, kUntouched));
  }
  check(both, config().left_place(), config().right_place());
}

// A list of both kinds: some of it the owner copies.
TEST_P(GpuKinds, PrivateAndSharedMemoryInOneList) {
  GpuPair& both = pair();
  const SideMemory mine(both.left, config().left_place(), 4 * kMiB);
  const SideMemory open(both.right, config().right_place(), 2 * kMiB);
  const SideMemory closed(both.right, right_place("private"), 2 * kMiB);
  const std::array pieces{
      Piece{mine.index(), open.imported_by(both.left), 0, open.address(0), 2 * kMiB},
      Piece{mine.index(), closed.imported_by(both.left), 2 * kMiB, closed.address(0), 2 * kMiB}};
  mine.fill(6);
  ASSERT_TRUE(is_ok(both.left.transfer("write", pieces)));
  EXPECT_TRUE(open.holds_pattern(0, 2 * kMiB, 6, 0));
  EXPECT_TRUE(closed.holds_pattern(0, 2 * kMiB, 6, 2 * kMiB));
  mine.set(kUntouched);
  ASSERT_TRUE(is_ok(both.left.transfer("read", pieces)));
  EXPECT_TRUE(mine.holds_pattern(0, 4 * kMiB, 6, 0));
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

TEST_P(GpuKinds, PrivateMemoryThatWasFreed) {
  const auto made = own_pair();
  const SideMemory theirs(made->right, config().right_place(), kMiB);
  const std::uint32_t id = theirs.imported_by(made->left);
  for (const PrivateKind& kind : kPrivateKinds) {
    SCOPED_TRACE(kind.name);
    const SideMemory mine(made->left, fmt::format("{}:0", kind.name), kMiB);
    const Piece piece{mine.index(), id, 0, theirs.address(0), kMiB};
    ASSERT_TRUE(is_ok(made->left.transfer("write", {&piece, 1})));
    ASSERT_TRUE(is_ok(status_of(made->left.call(fmt::format("free_only {}", mine.index())))));
    const Status status = made->left.transfer("write", {&piece, 1});
    ASSERT_TRUE(is_error(status, {ErrorCode::kNotFound}));
    EXPECT_NE(status.error().message.find("freed"), std::string::npos) << status.error().message;
  }
}

// At once a pool gives the address out for something else, of which a peer may read and change nothing.
TEST_P(GpuKinds, PoolMemoryThatWasFreedUnderAPeer) {
  const auto made = own_pair();
  const SideMemory open(made->left, config().left_place(), kMiB);
  const SideMemory closed(made->left, "private:0", kMiB);
  for (const char* const kind : kPools) {
    for (const SideMemory* const mine : {&open, &closed}) {
      SCOPED_TRACE(fmt::format("{}, {}", kind, mine == &open ? "its owner copies" : "by way of a ring"));
      const SideMemory freed(made->right, right_place(kind), kMiB);
      const Piece piece{mine->index(), freed.imported_by(made->left), 0, freed.address(0), kMiB};
      mine->fill(4);
      ASSERT_TRUE(is_ok(made->left.transfer("write", {&piece, 1})));
      ASSERT_TRUE(is_ok(status_of(made->right.call(fmt::format("free_only {}", freed.index())))));
      const SideMemory next(made->right, right_place(kind), kMiB);
      next.set(kUntouched);
      for (const char* const operation : {"write", "read"}) {
        EXPECT_TRUE(is_error(made->left.transfer(operation, {&piece, 1}), {ErrorCode::kNotFound}));
      }
      EXPECT_TRUE(next.is_set(0, kMiB, kUntouched));
      EXPECT_TRUE(mine->holds_pattern(0, kMiB, 4, 0));
      std::printf("figure pool kind=%s same_address=%d\n", kind, next.address(0) == freed.address(0));
    }
  }
}

bool has_pid_namespaces() { return run({"unshare", "--pid", "--fork", "--mount-proc", "true"}).has_value(); }

/// One MiB each way, and which transport the left side says for it.
void write_and_read_by(Side& left, const SideMemory& mine, const SideMemory& theirs, const char* transport) {
  const std::uint32_t id = theirs.imported_by(left);
  const Piece piece{mine.index(), id, 0, theirs.address(0), kMiB};
  mine.fill(4);
  theirs.set(kUntouched);
  ASSERT_TRUE(is_ok(left.transfer("write", {&piece, 1})));
  EXPECT_TRUE(theirs.holds_pattern(0, kMiB, 4, 0));
  mine.set(kUntouched);
  ASSERT_TRUE(is_ok(left.transfer("read", {&piece, 1})));
  EXPECT_TRUE(mine.holds_pattern(0, kMiB, 4, 0));
  const auto told = left.call(fmt::format("explain {} {}", mine.index(), id));
  ASSERT_TRUE(is_ok(status_of(told)));
  std::printf("figure explain %s\n", told->c_str());
  EXPECT_TRUE(told->starts_with(std::string(transport) + " ")) << *told;
}

// As two containers on one host.
TEST(GpuProbe, PeersInTwoPidNamespacesReachEachOther) {
  if (gpu_count() == 0) GTEST_SKIP() << "no CUDA device";
  if (!has_pid_namespaces()) GTEST_SKIP() << "no PID namespaces can be made here";
  Side left({});
  Side right({.own_pids = true});
  const std::string there = gpu_count() > 1 ? ":1" : ":0";
  const SideMemory mine(left, "cuda:0", kMiB);
  const SideMemory theirs(right, "cuda" + there, kMiB);
  const SideMemory mapped(right, "mapped" + there, kMiB);
  const SideMemory host(right, "host", kMiB);
  connect(left, right);
  write_and_read_by(left, mine, theirs, "cuda_ipc");
  write_and_read_by(left, mine, mapped, "cuda_ipc");
  write_and_read_by(left, mine, host, "tcp");
}

// Both are process 1 of their containers: the driver refuses legacy handles there.
TEST(GpuProbe, PeersOfTheSameNumberReachEachOther) {
  if (gpu_count() == 0) GTEST_SKIP() << "no CUDA device";
  if (!has_pid_namespaces()) GTEST_SKIP() << "no PID namespaces can be made here";
  Side left({.own_pids = true});
  Side right({.own_pids = true});
  const std::string there = gpu_count() > 1 ? ":1" : ":0";
  const SideMemory mine(left, "cuda:0", kMiB);
  const SideMemory theirs(right, "cuda" + there, kMiB);
  const SideMemory mapped(right, "mapped" + there, kMiB);
  const SideMemory closed(left, "private:0", kMiB);
  const SideMemory closed_there(right, "private" + there, kMiB);
  connect(left, right);
  write_and_read_by(left, mine, mapped, "cuda_ipc");
  write_and_read_by(left, mine, theirs, "cuda_ipc");
  write_and_read_by(left, closed, theirs, "cuda_ipc");
  write_and_read_by(left, mine, closed_there, "cuda_ipc");
  write_and_read_by(left, closed, closed_there, "cuda_ipc");
}

// Each side sees one GPU, and not the other's.
TEST(GpuProbe, AHiddenGpuIsReached) {
  if (gpu_count() < 2) GTEST_SKIP() << "needs two GPUs";
  Side left({.visible = "0"});
  Side right({.visible = "1"});
  const SideMemory mine(left, "cuda:0", kMiB);
  const SideMemory theirs(right, "cuda:0", kMiB);
  const SideMemory mapped(right, "mapped:0", kMiB);
  const SideMemory closed(left, "private:0", kMiB);
  const SideMemory closed_there(right, "private:0", kMiB);
  connect(left, right);
  write_and_read_by(left, mine, theirs, "cuda_ipc");
  write_and_read_by(left, mine, mapped, "cuda_ipc");
  write_and_read_by(left, closed, closed_there, "cuda_ipc");
}

}  // namespace
}  // namespace p2p::testing
