// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/shared_memory.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>

#include "support/process.h"

namespace p2p::shared_memory_test {
namespace {

constexpr std::size_t kBytes = 100'000;

TEST(SharedMemory, IsFoundByAnyRangeInItAndByNoOther) {
  auto memory = SharedMemory::create(kBytes).value();
  const std::byte* const data = memory->data();
  EXPECT_EQ(SharedMemory::find(data, kBytes), memory);
  EXPECT_EQ(SharedMemory::find(data + 10, kBytes - 10), memory);
  EXPECT_EQ(SharedMemory::find(data + 10, kBytes - 9), nullptr);
  EXPECT_EQ(SharedMemory::find(data - 1, 2), nullptr);
  EXPECT_EQ(SharedMemory::find(&kBytes, 1), nullptr);
  memory.reset();
  EXPECT_EQ(SharedMemory::find(data, 1), nullptr);
  EXPECT_FALSE(SharedMemory::create(0));
}

// A child has none of the threads that may hold the table's lock when it is made.
TEST(SharedMemory, AChildHasItsOwn) {
  auto memory = SharedMemory::create(kBytes).value();
  const std::byte* const data = memory->data();
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) EXPECT_NE(SharedMemory::find(data, 1), nullptr);
  });
  for (int child = 0; child != 50 && !::testing::Test::HasFailure(); ++child) {
    const auto end = testing::in_child([&] {
      memory.reset();  // its parent's
      const auto own = SharedMemory::create(kBytes);
      return own && SharedMemory::find((*own)->data(), kBytes) == *own ? 7 : 1;
    });
    EXPECT_EQ(end.code, 7) << "child " << child;
  }
  stop = true;
  busy.join();
}

TEST(SharedMemory, SaysWhatIsTooMuch) {
  for (const std::size_t bytes :
       {std::size_t{1} << 62, ~std::size_t{0} >> 1, (~std::size_t{0} >> 1) + 1, ~std::size_t{0}}) {
    errno = 0;
    const auto made = SharedMemory::create(bytes);
    ASSERT_FALSE(made) << bytes;
    EXPECT_EQ(made.error().code, ErrorCode::kSystem);
    EXPECT_THAT(made.error().message, ::testing::HasSubstr(std::to_string(bytes)));
    EXPECT_THAT(made.error().message, ::testing::Not(::testing::HasSubstr("Success")));
  }
}

TEST(SharedMemory, WhoMapsItsFileSeesTheSameBytes) {
  const auto memory = SharedMemory::create(kBytes).value();
  const auto there = MappedFile::map(memory->file(), 5001, kBytes - 5001).value();
  std::memset(memory->data() + 5001, 7, 10);
  EXPECT_EQ(there.data()[9], std::byte{7});
  there.data()[0] = std::byte{9};
  EXPECT_EQ(memory->data()[5001], std::byte{9});
}

TEST(SharedMemory, ItsSizeStays) {
  const auto memory = SharedMemory::create(kBytes).value();
  EXPECT_EQ(size_of_sealed_file(memory->file()).value(), kBytes);
  EXPECT_NE(::ftruncate(memory->file().get(), 0), 0);
  EXPECT_NE(::ftruncate(memory->file().get(), 2 * kBytes), 0);
  EXPECT_NE(::fcntl(memory->file().get(), F_ADD_SEALS, F_SEAL_WRITE), 0);
}

TEST(SharedMemory, WhatCouldBeTruncatedIsRefused) {
  const UniqueFd open = UniqueFd::of(::memfd_create, "p2p-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_EQ(::ftruncate(open.get(), kBytes), 0);
  EXPECT_EQ(size_of_sealed_file(open).error().code, ErrorCode::kProtocol);
  ASSERT_EQ(::fcntl(open.get(), F_ADD_SEALS, F_SEAL_GROW), 0);
  EXPECT_EQ(size_of_sealed_file(open).error().code, ErrorCode::kProtocol);
  EXPECT_EQ(size_of_sealed_file(UniqueFd(::dup(0))).error().code, ErrorCode::kProtocol);
  EXPECT_EQ(size_of_sealed_file(UniqueFd()).error().code, ErrorCode::kProtocol);
}

}  // namespace
}  // namespace p2p::shared_memory_test
