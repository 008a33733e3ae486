// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/safe_copy.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <thread>
#include <vector>

#include "support/forbid.h"
#include "support/memory.h"
#include "support/process.h"

namespace p2p {
namespace {

using testing::Bad;
using testing::kPage;
using testing::Pages;
using testing::ProcessEnd;

constexpr std::size_t kBytes = 64 * kPage;

iovec piece(std::span<std::byte> bytes) { return {bytes.data(), bytes.size()}; }

class SafeCopyTest : public ::testing::Test {
 protected:
  SafeCopyTest() : pages_(2 * kBytes), own_(2 * kBytes) {
    testing::fill(own_, 1);
    testing::fill(pages_.bytes(), 2);
  }

  Pages pages_;
  std::vector<std::byte> own_;
};

TEST_F(SafeCopyTest, GoesByPiecesOfAnySize) {
  std::vector<iovec> pieces;
  std::size_t bytes = 0;
  for (std::size_t size = 0; bytes + size <= pages_.size(); size = size * 3 / 2 + pieces.size() % 3) {
    pieces.push_back(piece(pages_.part(bytes, size)));
    bytes += size;
  }
  EXPECT_EQ(copy_out(pieces, own_.data(), bytes), bytes);
  EXPECT_EQ(testing::difference(pages_.part(0, bytes), 1), std::nullopt);
  std::vector<std::byte> back(bytes);
  EXPECT_EQ(copy_in(back.data(), pieces, bytes), bytes);
  EXPECT_EQ(testing::difference(back, 1), std::nullopt);
  EXPECT_EQ(copy_in(back.data(), pieces, 1000, 5000), 1000U);
  EXPECT_TRUE(std::equal(back.begin(), back.begin() + 1000, own_.begin() + 5000));
  EXPECT_TRUE(readable(pieces));
}

TEST_F(SafeCopyTest, TheRoomIsGoodForMoreThanOneCall) {
  std::vector<iovec> pieces;  // more than one call of the system takes
  for (std::size_t i = 0; i != 500; ++i) pieces.push_back(piece(pages_.part(i * 100, 100)));
  const std::span<std::byte> room = copy_room();
  ASSERT_EQ(copy_in(room.data(), pieces, 50000), 50000U);
  EXPECT_EQ(testing::difference(room.first(50000), 2), std::nullopt);
  testing::fill(room.first(50000), 3);
  ASSERT_EQ(copy_out(pieces, room.data(), 50000), 50000U);
  EXPECT_EQ(testing::difference(pages_.part(0, 50000), 3), std::nullopt);
}

// Whoever meets bad memory goes on behind it with what the room holds.
TEST_F(SafeCopyTest, APartOfTheRoomIsCopiedAndTheRestStays) {
  const std::span<std::byte> room = copy_room();
  testing::fill(room, 4);
  const std::vector<std::byte> before(room.begin(), room.end());
  const std::size_t at = 1000;
  const std::size_t bytes = 3 * kPage;
  testing::spoil(pages_.part(2 * kPage, kPage), Bad::kProtected);
  const std::array pieces{piece(pages_.part(0, 4 * kPage))};
  ASSERT_EQ(copy_out(pieces, &room[at], bytes), 2 * kPage);
  EXPECT_TRUE(std::equal(room.begin(), room.end(), before.begin()));
  EXPECT_TRUE(std::equal(pages_.data(), pages_.data() + 2 * kPage, &before[at]));
  ASSERT_EQ(copy_in(&room[at], std::array{piece(pages_.part(3 * kPage, kPage))}, kPage), kPage);
  EXPECT_TRUE(std::equal(room.begin(), room.begin() + at, before.begin()));
  EXPECT_TRUE(std::equal(&room[at], &room[at] + kPage, pages_.data() + 3 * kPage));
  EXPECT_TRUE(std::equal(room.begin() + at + kPage, room.end(), before.begin() + at + kPage));
}

TEST_F(SafeCopyTest, StopsAtBadMemory) {
  for (const Bad how : {Bad::kReadOnly, Bad::kProtected, Bad::kCut}) {
    Pages pages(2 * kBytes);
    testing::spoil(pages.part(kBytes, kBytes), how);
    const std::array whole{piece(pages.bytes())};
    EXPECT_EQ(copy_out(whole, own_.data(), own_.size()), kBytes);
    EXPECT_EQ(testing::difference(pages.part(0, kBytes), 1), std::nullopt);
    const std::size_t legible = how == Bad::kReadOnly ? 2 * kBytes : kBytes;
    std::vector<std::byte> back(2 * kBytes);
    EXPECT_EQ(copy_in(back.data(), whole, back.size()), legible);
    EXPECT_EQ(readable(whole), how == Bad::kReadOnly);
    EXPECT_FALSE(copy_across(pages.data() + kBytes - 10, pages_.data(), 20));
    EXPECT_EQ(copy_across(pages_.data(), pages.data() + kBytes - 10, 20), how == Bad::kReadOnly);
  }
  const std::array nowhere{iovec{nullptr, 8}};
  EXPECT_EQ(copy_out(nowhere, own_.data(), 8), 0U);
}

// A piece may end in a page that no step from its begin meets.
TEST_F(SafeCopyTest, LooksAtEachPage) {
  for (const Bad how : {Bad::kReadOnly, Bad::kProtected, Bad::kCut}) {
    Pages pages(16 * kPage);
    testing::fill(pages.bytes(), 1);
    testing::spoil(pages.part(8 * kPage, how == Bad::kCut ? 8 * kPage : kPage), how);
    const auto tells = [&](std::size_t at, std::size_t size, bool good) {
      const iovec some = piece(pages.part(at, size));
      EXPECT_EQ(readable({&some, 1}), good || how == Bad::kReadOnly) << at << ", " << size;
      EXPECT_EQ(writable(some), good) << at << ", " << size;
    };
    tells(0, 8 * kPage, true);
    for (const std::size_t size : {std::size_t{2}, kPage, 5 * kPage})
      tells(8 * kPage + 1 - size, size, false);
    tells(8 * kPage - 1, 2 * kPage, false);
    tells(2 * kPage, 6 * kPage, true);
    EXPECT_EQ(testing::difference(pages.part(0, 8 * kPage), 1), std::nullopt);
  }
}

TEST_F(SafeCopyTest, ALookTakesNothingFromWhoWritesThere) {
  auto& counter = *reinterpret_cast<std::uint64_t*>(pages_.data());
  counter = 0;
  std::thread other([&] {
    for (int i = 0; i != 20000; ++i) std::atomic_ref(counter).fetch_add(1);
  });
  for (int i = 0; i != 2000; ++i) EXPECT_TRUE(writable(piece(pages_.bytes())));
  other.join();
  EXPECT_EQ(counter, 20000U);
}

TEST_F(SafeCopyTest, MovesWithinOneMemoryEitherWay) {
  const std::size_t bytes = kBytes + 1000;
  for (const std::size_t by : {std::size_t{1}, std::size_t{5000}, kBytes - 1000}) {
    testing::fill(pages_.part(0, bytes), by);
    ASSERT_TRUE(copy_across(pages_.data() + by, pages_.data(), bytes));
    EXPECT_EQ(testing::difference(pages_.part(by, bytes), by), std::nullopt);
    ASSERT_TRUE(copy_across(pages_.data(), pages_.data() + by, bytes));
    EXPECT_EQ(testing::difference(pages_.part(0, bytes), by), std::nullopt);
  }
}

TEST_F(SafeCopyTest, AForkedChildHasARoomOfItsOwn) {
  const std::array whole{piece(pages_.part(0, 100))};
  ASSERT_EQ(copy_out(whole, own_.data(), 100), 100U);
  testing::fill(copy_room(), 7);
  const ProcessEnd end = testing::in_child([&] {
    testing::fill(copy_room(), 8);
    const bool right = copy_out(whole, own_.data() + 100, 100) == 100;
    return right && std::equal(own_.begin() + 100, own_.begin() + 200, pages_.data()) ? 0 : 1;
  });
  EXPECT_EQ(end, ProcessEnd{.code = 0});
  EXPECT_EQ(testing::difference(copy_room(), 7), std::nullopt);
}

TEST_F(SafeCopyTest, GoesWithoutFilesInMemory) {
  const std::array whole{piece(pages_.bytes())};
  testing::spoil(pages_.part(kBytes, kBytes), Bad::kCut);
  const ProcessEnd end = testing::in_child([&] {  // whose room is made anew
    if (!testing::forbid(SYS_memfd_create, EPERM)) return 0;
    const bool right = copy_out(whole, own_.data(), own_.size()) == kBytes &&
                       copy_in(own_.data() + kBytes, whole, kBytes) == kBytes && !readable(whole);
    return right && !testing::difference(std::span(own_).subspan(kBytes), 1) ? 0 : 1;
  });
  EXPECT_EQ(end, ProcessEnd{.code = 0});
}

}  // namespace
}  // namespace p2p
