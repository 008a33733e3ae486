// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cuda_ipc/copies/late_copies.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>

#include "support/eventually.h"

namespace p2p::cuda_ipc {
namespace {

using testing::eventually;

struct Copies {
  // Told by its deleter: a weak_ptr that has expired orders nothing before what comes next in the test.
  std::atomic<bool> released{false};
  std::shared_ptr<void> memory{this, [this](void*) { released = true; }};
  std::atomic<bool> ended{false};
  std::atomic<int> looks{0};

  void leave_to(LateCopies& late) {
    late.keep(std::move(memory), [this] {
      ++looks;
      return ended.load();
    });
  }
};

TEST(LateCopies, KeepsMemoryUntilItsCopiesHaveEndedAndNoLonger) {
  Copies first;
  Copies second;
  LateCopies late;
  first.leave_to(late);
  second.leave_to(late);
  EXPECT_TRUE(eventually([&] { return first.looks > 2 && second.looks > 2; }));
  EXPECT_FALSE(first.released.load());
  second.ended = true;
  EXPECT_TRUE(eventually([&] { return second.released.load(); }));
  EXPECT_FALSE(first.released.load());
  first.ended = true;
  EXPECT_TRUE(eventually([&] { return first.released.load(); }));
}

TEST(LateCopies, IsThereAgainAfterAll) {
  LateCopies late;
  for (int round = 0; round < 20; ++round) {
    Copies copies;
    copies.ended = true;
    copies.leave_to(late);
    ASSERT_TRUE(eventually([&] { return copies.released.load(); })) << round;
  }
}

TEST(LateCopies, LetsGoOfAllAtItsEnd) {
  Copies copies;
  {
    LateCopies late;
    copies.leave_to(late);
    EXPECT_TRUE(eventually([&] { return copies.looks > 0; }));
  }
  EXPECT_TRUE(copies.released.load());
}

}  // namespace
}  // namespace p2p::cuda_ipc
