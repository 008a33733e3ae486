// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// What moving GPU memory leaves of the GPUs themselves: contexts and free memory.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "gpu_memory.h"
#include "gpu_pair.h"
#include "support/eventually.h"
#include "support/peer.h"

namespace p2p::testing {
namespace {

class GpuState : public GpuTest {};
P2P_OVER_GPUS(GpuState);

/// Ordinals of the GPUs on which a side has a context, by commas.
std::string contexts(Side& side) {
  const auto answer = side.call("contexts");
  EXPECT_TRUE(is_ok(status_of(answer)));
  return answer.value_or("unknown");
}

/// Of every GPU, whoever uses it.
std::vector<std::uint64_t> free_memory() {
  std::vector<std::uint64_t> free;
  for (int device = 0; device < gpu_count(); ++device) {
    const auto bytes = free_gpu_memory(device);
    EXPECT_TRUE(is_ok(status_of(bytes)));
    free.push_back(bytes.value_or(0));
  }
  return free;
}

/// 1000 transfers of all kinds from the left side.
void work(Side& left, const SideMemory& mine, const SideMemory& theirs, std::uint32_t id) {
  const auto repeat = [&](const char* operation, const std::vector<Piece>& pieces, int times, int depth) {
    std::ranges::copy(std::as_bytes(std::span(pieces)), left.window().bytes().begin());
    EXPECT_TRUE(is_ok(
        status_of(left.call(fmt::format("repeat {} {} {} {}", operation, pieces.size(), times, depth)))));
  };
  for (const char* operation : {"write", "read"}) {
    for (const std::size_t size : {std::size_t{5}, std::size_t{65536}, kMiB, 16 * kMiB}) {
      repeat(operation, {{mine.index(), id, 0, theirs.address(0), size}}, 100, size == kMiB ? 1 : 4);
    }
    repeat(operation, pieces_of(scattered(3000, 5, 0), mine, theirs, id), 100, 3);
  }
}

TEST_P(GpuState, ASteadyStateTakesNoMoreOfAnyGpu) {
  const auto made = own_pair();
  const SideMemory mine(made->left, config().left_place(), 32 * kMiB);
  const SideMemory theirs(made->right, config().right_place(), 32 * kMiB);
  const std::uint32_t id = theirs.imported_by(made->left);
  free_memory();  // makes this process's contexts
  work(made->left, mine, theirs, id);
  const std::string left_before = contexts(made->left);
  const std::string right_before = contexts(made->right);
  // The driver may still be taking back what processes of other tests had; a leak shows in every round.
  std::vector<std::uint64_t> before;
  std::vector<std::uint64_t> after;
  for (int round = 0; round < 3 && (round == 0 || after != before); ++round) {
    before = free_memory();
    work(made->left, mine, theirs, id);
    after = free_memory();
  }
  EXPECT_EQ(after, before) << "free bytes of each GPU";
  EXPECT_EQ(contexts(made->left), left_before) << "GPUs that the left side has a context on";
  EXPECT_EQ(contexts(made->right), right_before) << "the right side";
}

// A peer that reaches memory keeps it from being freed, and is to let go of it when its owner takes it back.
TEST_P(GpuState, WhatIsTakenBackAndFreedIsThereForOthers) {
  constexpr std::size_t kLarge = 4096 * kMiB;
  constexpr std::size_t kSlack = 256 * kMiB;
  const auto made = own_pair();
  const int device = config().two ? 1 : 0;
  const SideMemory mine(made->left, config().left_place(), 32 * kMiB);
  const auto write_to = [&](const SideMemory& theirs) {
    const Piece piece{mine.index(), theirs.imported_by(made->left), 0, theirs.address(0), 32 * kMiB};
    ASSERT_TRUE(is_ok(made->left.transfer("write", {&piece, 1})));
  };
  // What is made at the first use is not counted.
  write_to(SideMemory(made->right, config().right_place(), 32 * kMiB));
  const auto free = [&] { return free_gpu_memory(device).value_or(0); };
  const std::uint64_t before = free();
  for (const std::string& place : {config().right_place(), fmt::format("chunks:{}", device)}) {
    SCOPED_TRACE(place);
    {
      const SideMemory large(made->right, place, kLarge);
      write_to(large);
      EXPECT_LT(free() + kLarge - kSlack, before);
    }
    EXPECT_TRUE(eventually([&] { return free() + kSlack >= before; }))
        << (before - free()) / kMiB << " MiB are still taken";
  }
}

// As engines for inference do that sleep: the memory goes while it is registered.
TEST_P(GpuState, WhatIsUnmappedWhileRegisteredIsThereForOthers) {
  constexpr std::size_t kLarge = 4096 * kMiB;
  constexpr std::size_t kSlack = 256 * kMiB;
  const auto made = own_pair();
  const int device = config().two ? 1 : 0;
  const SideMemory mine(made->left, config().left_place(), 32 * kMiB);
  const auto free = [&] { return free_gpu_memory(device).value_or(0); };
  const SideMemory large(made->right, fmt::format("chunks:{}", device), kLarge);
  const std::uint64_t before = free();
  const Piece piece{mine.index(), large.imported_by(made->left), 0, large.address(0), 32 * kMiB};
  ASSERT_TRUE(is_ok(made->left.transfer("write", {&piece, 1})));
  ASSERT_TRUE(is_ok(status_of(made->right.call(fmt::format("free_only {}", large.index())))));
  EXPECT_TRUE(eventually([&] { return free() + kSlack >= before + kLarge; }))
      << (before + kLarge - free()) / kMiB << " MiB are still taken";
}

// While the programs of both sides capture graphs all that the engine does is done: regions are registered,
// told of, imported, measured with and copied, also such as both sides copy, and taken back.
TEST_P(GpuState, GraphsThatBothSidesCaptureAreKept) {
  const auto made = own_pair();
  const int there = config().two ? 1 : 0;
  const std::size_t size = 40 * kMiB;
  for (const char* const kind : {"cuda", "chunks", "private"}) {
    SCOPED_TRACE(kind);
    const SideMemory mine(made->left, fmt::format("{}:0", kind), size);
    const SideMemory theirs(made->right, fmt::format("{}:{}", kind, there), size);
    const SideMemory last(made->right, fmt::format("{}:{}", kind, there), size);
    mine.fill(5);
    ASSERT_TRUE(is_ok(status_of(made->left.call("capture 0"))));
    ASSERT_TRUE(is_ok(status_of(made->right.call(fmt::format("capture {}", there)))));
    const std::uint32_t id = theirs.imported_by(made->left);
    const std::uint32_t last_id = last.imported_by(made->left);
    for (const std::size_t bytes : {std::size_t{64} << 10, size}) {
      const Piece piece{mine.index(), id, 0, theirs.address(0), bytes};
      EXPECT_TRUE(is_ok(made->left.transfer("write", {&piece, 1})));
      EXPECT_TRUE(is_ok(made->left.transfer("read", {&piece, 1})));
    }
    const Piece piece{mine.index(), last_id, 0, last.address(0), size};
    EXPECT_TRUE(is_ok(made->left.transfer("write", {&piece, 1})));
    EXPECT_TRUE(is_ok(status_of(made->right.call(fmt::format("revoke {}", last.index())))));
    EXPECT_TRUE(is_ok(status_of(made->left.call("captured"))));
    EXPECT_TRUE(is_ok(status_of(made->right.call("captured"))));
    EXPECT_TRUE(theirs.holds_pattern(0, size, 5, 0));
    EXPECT_TRUE(last.holds_pattern(0, size, 5, 0));
  }
}

// Memory that was offered to a peer for the peer to copy is let go of like memory that it imported.
TEST_P(GpuState, WhatWasOfferedIsThereForOthers) {
  constexpr std::size_t kLarge = 4096 * kMiB;
  constexpr std::size_t kSlack = 256 * kMiB;
  const auto made = own_pair();
  const SideMemory theirs(made->right, config().two ? "private:1" : "private:0", 32 * kMiB);
  const std::uint32_t id = theirs.imported_by(made->left);
  const auto write_from = [&](const SideMemory& mine) {
    const Piece piece{mine.index(), id, 0, theirs.address(0), 32 * kMiB};
    ASSERT_TRUE(is_ok(made->left.transfer("write", {&piece, 1})));
  };
  write_from(SideMemory(made->left, "chunks:0", 32 * kMiB));
  const auto free = [&] { return free_gpu_memory(0).value_or(0); };
  const std::uint64_t before = free();
  write_from(SideMemory(made->left, "chunks:0", kLarge));
  EXPECT_TRUE(eventually([&] { return free() + kSlack >= before; }))
      << (before - free()) / kMiB << " MiB are still taken";
}

// Not on the data path, and yet the first transfer waits for it if it comes at once.
TEST_P(GpuState, ImportingTakesLittleTime) {
  if (!config().two || std::string(config().transport) != "cuda_ipc")
    GTEST_SKIP() << "measured between two GPUs";
  const auto made = own_pair();
  const auto time_of = [&](const std::string& place, std::size_t size) {
    const auto time = SideMemory(made->right, place, size).import_time(made->left);
    std::printf("figure import place=%s mib=%zu us=%ld\n", place.c_str(), size / kMiB,
                static_cast<long>(time.count()));
    return time;
  };
  time_of("chunks:1", 2 * kMiB);
  time_of("chunks:1", 2 * kMiB);
  time_of("cuda:1", 16384 * kMiB);
  time_of("chunks:1", 8192 * kMiB);
  time_of("segments:1", 16384 * kMiB);
  EXPECT_LT(time_of("segments:1", 16384 * kMiB), std::chrono::milliseconds(500));
}

// CUDA may need a context on the GPU whose memory another process shares; what it makes of that by itself is
// found by a process that does nothing else. The engine is to make no more.
TEST_P(GpuState, NoContextOnAGpuThatIsThePeersAlone) {
  if (!config().two) GTEST_SKIP() << "with one GPU there is no other";
  const auto made = own_pair();
  const SideMemory mine(made->left, config().left_place(), 32 * kMiB);
  const SideMemory theirs(made->right, config().right_place(), 32 * kMiB);
  work(made->left, mine, theirs, theirs.imported_by(made->left));
  Side reference({.transport = config().transport});
  ASSERT_TRUE(is_ok(status_of(made->right.call(fmt::format("share {}", theirs.index())))));
  std::ranges::copy(made->right.window().bytes().first(std::tuple_size_v<GpuHandle>),
                    reference.window().bytes().begin());
  ASSERT_TRUE(is_ok(status_of(reference.call("open_shared 0"))));
  const bool shared = std::string(config().transport) == "cuda_ipc";
  const bool both = shared && contexts(reference) == "0,1";
  std::printf("figure contexts transport=%s with_gpu_0=%s with_gpu_1=%s ipc_alone=%s\n", config().transport,
              contexts(made->left).c_str(), contexts(made->right).c_str(), contexts(reference).c_str());
  EXPECT_EQ(contexts(made->left), both ? "0,1" : "0") << "of the side that registered memory of GPU 0";
  EXPECT_EQ(contexts(made->right), both ? "0,1" : "1") << "the side that was only written to and read from";
}

// A process with host memory takes part without a GPU until it moves something to one.
TEST_P(GpuState, HostMemoryToThePeersGpu) {
  if (!config().two) GTEST_SKIP() << "looked at with two GPUs";
  Side left({.transport = config().transport});
  Side right({.transport = config().transport});
  const SideMemory mine(left, "host", kMiB, 1);
  const SideMemory theirs(right, "cuda:1", kMiB, 1);
  const std::string before = contexts(left);
  connect(left, right);
  const std::string connected = contexts(left);
  EXPECT_EQ(connected, before) << "a connection alone needs no GPU";
  mine.fill(9);
  const Piece piece{mine.index(), theirs.imported_by(left), 1, theirs.address(1), kMiB};
  ASSERT_TRUE(is_ok(left.transfer("write", {&piece, 1})));
  EXPECT_TRUE(theirs.holds_pattern(1, kMiB, 9, 1));
  std::printf("figure contexts transport=%s host_process registered=[%s] connected=[%s] after_a_write=[%s]\n",
              config().transport, before.c_str(), connected.c_str(), contexts(left).c_str());
  EXPECT_EQ(before, "") << "after host memory was registered";
  if (std::string(config().transport) == "tcp") {
    EXPECT_EQ(contexts(left), "") << "over tcp the GPU is the peer's alone";
  } else {
    EXPECT_EQ(contexts(left), "1") << "the GPU that was written to, and no other";
  }
}

}  // namespace
}  // namespace p2p::testing
