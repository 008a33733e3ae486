// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstring>
#include <future>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "support/hex.h"
#include "support/peer.h"
#include "support/transports.h"

namespace p2p::testing::region {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::initializer_list<ErrorCode> kRefused{ErrorCode::kNotFound, ErrorCode::kPermissionDenied,
                                                    ErrorCode::kOutOfRange};

class RegionTest : public OverTransport {
 protected:
  RegionTest() : pair({.transport = GetParam()}), own(pair.endpoint, kMiB) {}

  /// The outcome of a write of `size` bytes to what a descriptor names, its import included.
  Status write(const RegionDescriptor& to, std::uint64_t offset, std::size_t size) {
    const auto id = pair.connection.import_region(to);
    if (!id) return status_of(id);
    return pair.connection.write(own.span(0, size), {*id, to.address + offset, size}).wait(kLimit);
  }

  Status read(const RegionDescriptor& from, std::uint64_t offset, std::size_t size) {
    const auto id = pair.connection.import_region(from);
    if (!id) return status_of(id);
    return pair.connection.read(own.span(0, size), {*id, from.address + offset, size}).wait(kLimit);
  }

  Status peer_clear(const PeerRegion& region, std::uint64_t offset, std::uint64_t size) {
    return status_of(pair.peer.call(fmt::format("check_clear {} {} {}", region.index, offset, size)));
  }

  Pair pair;
  OwnRegion own;
};
P2P_OVER_TRANSPORTS(RegionTest);

TEST_P(RegionTest, SameAndOverlappingRangesRegisterManyTimes) {
  const std::size_t size = 64 << 10;
  Pages pages(size);
  std::vector<MemoryRegion> regions;
  for (const std::size_t offset : {std::size_t{0}, std::size_t{0}, std::size_t{1000}, size / 2}) {
    auto region = pair.endpoint.register_memory(pages.data() + offset, size / 2);
    ASSERT_TRUE(is_ok(status_of(region)));
    regions.push_back(std::move(*region));
  }
  const PeerRegion theirs = pair.peer.region(size);
  const auto peer_write = [&](const MemoryRegion& to, std::uint64_t seed) {
    pair.peer.number(fmt::format("fill {} 0 {} {}", theirs.index, to.size(), seed));
    const auto id = pair.peer.call(fmt::format("import {} {}", pair.at_peer, to_hex(to.descriptor())));
    if (!id) return status_of(id);
    return pair.peer.wait(
        pair.peer.number(fmt::format("write {} {} 0 {} {} {}", pair.at_peer, theirs.index, to.size(), *id,
                                     reinterpret_cast<std::uintptr_t>(to.data()))));
  };
  for (const MemoryRegion& region : regions) {
    const auto seed = static_cast<std::uint64_t>(region.id());
    EXPECT_TRUE(is_ok(peer_write(region, seed)));
    EXPECT_EQ(difference({region.data(), region.size()}, seed), std::nullopt);
  }
  // Letting one go leaves its twin.
  const RegionDescriptor gone = regions[0].descriptor();
  ASSERT_TRUE(is_ok(regions[0].release(kLimit)));
  EXPECT_TRUE(is_ok(peer_write(regions[1], 99)));
  EXPECT_EQ(difference({regions[1].data(), regions[1].size()}, 99), std::nullopt);
  const auto id = pair.peer.call(fmt::format("import {} {}", pair.at_peer, to_hex(gone)));
  if (id) {
    const std::uint64_t transfer = pair.peer.number(
        fmt::format("write {} {} 0 100 {} {}", pair.at_peer, theirs.index, *id, gone.address));
    EXPECT_TRUE(is_error(pair.peer.wait(transfer), kRefused));
  }
}

TEST_P(RegionTest, MemoryThatNobodyRegisteredIsCoveredOnFirstUse) {
  const std::size_t size = 64 << 10;
  Pages pages(size);
  fill(pages.part(4096, 8192), 7);
  fill(pages.part(20000, 1000), 8);
  // Out of order: two that touch, one inside of them, one apart.
  const std::array<std::pair<std::size_t, std::size_t>, 4> pieces{
      {{8192, 4096}, {4096, 4096}, {5000, 100}, {20000, 1000}}};
  const auto spans = [&] {
    std::vector<LocalSpan> made;
    for (const auto& [at, bytes] : pieces) made.push_back({RegionId{0}, pages.data() + at, bytes});
    return made;
  };
  std::vector<LocalSpan> first = spans();
  const auto held = pair.endpoint.cover(first);
  ASSERT_TRUE(is_ok(status_of(held)));
  EXPECT_EQ(held->size(), 2U);
  EXPECT_EQ(first[0].region, first[1].region);
  EXPECT_EQ(first[0].region, first[2].region);
  EXPECT_NE(first[0].region, first[3].region);
  std::vector<LocalSpan> again = spans();
  ASSERT_TRUE(is_ok(status_of(pair.endpoint.cover(again))));
  for (std::size_t i = 0; i < pieces.size(); ++i) EXPECT_EQ(again[i].region, first[i].region) << i;

  const PeerRegion theirs = pair.peer.region(size);
  const auto id = pair.connection.import_region(theirs.descriptor);
  ASSERT_TRUE(is_ok(status_of(id)));
  std::vector<RemoteSpan> targets;
  for (const auto& [at, bytes] : pieces) targets.push_back({*id, theirs.descriptor.address + at, bytes});
  EXPECT_TRUE(is_ok(pair.connection.write(again, targets).wait(kLimit)));
  EXPECT_TRUE(is_ok(status_of(pair.peer.call(fmt::format("check {} 4096 8192 7", theirs.index)))));
  EXPECT_TRUE(is_ok(status_of(pair.peer.call(fmt::format("check {} 20000 1000 8", theirs.index)))));
  EXPECT_TRUE(is_ok(peer_clear(theirs, 12288, 20000 - 12288)));
  std::vector<LocalSpan> none{{RegionId{0}, nullptr, 4096}};
  EXPECT_TRUE(is_error(status_of(pair.endpoint.cover(none)), {ErrorCode::kInvalidArgument}));
}

TEST_P(RegionTest, RegisteredAgainHasTheNameItHad) {
  Pages pages(kMiB);
  auto region = pair.endpoint.register_memory(pages.data(), kMiB);
  ASSERT_TRUE(is_ok(status_of(region)));
  const RegionDescriptor before = region->descriptor();
  const PeerRegion theirs = pair.peer.region(kMiB);
  const auto again = [&](std::size_t size, const RegionDescriptor& name) {
    RegionOptions options;
    options.again = name;
    return pair.endpoint.register_memory(pages.data(), size, options);
  };
  EXPECT_TRUE(is_error(status_of(again(kMiB, before)), {ErrorCode::kInvalidArgument})) << "it lives";
  ASSERT_TRUE(is_ok(region->release(kLimit)));
  EXPECT_TRUE(is_error(status_of(again(kMiB / 2, before)), {ErrorCode::kInvalidArgument})) << "other memory";
  RegionDescriptor made_up = before;
  made_up.region = RegionId{1'000'000};
  EXPECT_TRUE(is_error(status_of(again(kMiB, made_up)), {ErrorCode::kInvalidArgument}));
  auto second = again(kMiB, before);
  ASSERT_TRUE(is_ok(status_of(second)));
  EXPECT_EQ(second->descriptor().serialize(), before.serialize());
  // A peer that never heard of the first one finds the second by its name.
  pair.peer.number(fmt::format("fill {} 0 {} 6", theirs.index, kMiB));
  const auto id = pair.peer.call(fmt::format("import {} {}", pair.at_peer, to_hex(before)));
  ASSERT_TRUE(is_ok(status_of(id)));
  EXPECT_TRUE(is_ok(pair.peer.wait(pair.peer.number(
      fmt::format("write {} {} 0 {} {} {}", pair.at_peer, theirs.index, kMiB, *id, before.address)))));
  EXPECT_EQ(difference({second->data(), second->size()}, 6), std::nullopt);
}

TEST_P(RegionTest, NothingCanBeRegisteredAndMoved) {
  const std::initializer_list<ErrorCode> none{ErrorCode::kNotFound, ErrorCode::kUnavailable};
  const PeerRegion theirs = pair.peer.region(0);
  const auto id = pair.connection.import_region(theirs.descriptor);
  const PeerRegion some = pair.peer.region(4096);
  const auto other = pair.connection.import_region(some.descriptor);
  ASSERT_TRUE(is_ok(status_of(id)) && is_ok(status_of(other)));
  Pages pages(4096);
  for (void* const data : {static_cast<void*>(nullptr), static_cast<void*>(pages.data())}) {
    auto region = pair.endpoint.register_memory(data, 0);
    ASSERT_TRUE(is_ok(status_of(region)));
    const LocalSpan nothing = region->span(0, 0);
    const RemoteSpan there{*id, theirs.descriptor.address, 0};
    EXPECT_TRUE(is_ok(pair.connection.write(nothing, there).wait(kLimit)));
    EXPECT_TRUE(is_ok(pair.connection.read(nothing, there).wait(kLimit)));
    EXPECT_TRUE(is_ok(pair.connection.write({own.region.id(), nullptr, 0}, {*other, 0, 0}).wait(kLimit)));
    // Among what is something, in its region and in none's company.
    fill(own.part(0, 4096), 5);
    const std::vector<LocalSpan> from{
        nothing, own.span(0, 100), nothing, {own.region.id(), nullptr, 0}, own.span(100, 3996)};
    const std::uint64_t at = some.descriptor.address;
    const std::vector<RemoteSpan> to{
        there, {*other, at, 100}, {*other, 0, 0}, {*other, at + 9, 0}, {*other, at + 100, 3996}};
    EXPECT_TRUE(is_ok(pair.connection.write(from, to).wait(kLimit)));
    EXPECT_TRUE(is_ok(status_of(pair.peer.call(fmt::format("check {} 0 4096 5", some.index)))));
    const std::uint64_t received =
        pair.peer.number(fmt::format("recv {} {} 0 0", pair.at_peer, theirs.index));
    EXPECT_TRUE(is_ok(pair.connection.send(nothing).wait(kLimit)));
    EXPECT_TRUE(is_ok(pair.peer.wait(received)));
    EXPECT_TRUE(is_error(
        pair.connection.write(own.span(0, 8), {*id, theirs.descriptor.address, 8}).wait(kLimit), none));
    EXPECT_TRUE(is_ok(region->release(kLimit)));
  }
  EXPECT_TRUE(is_error(status_of(pair.endpoint.register_memory(static_cast<void*>(nullptr), 1)),
                       {ErrorCode::kInvalidArgument}));
  EXPECT_TRUE(is_ok(pair.connection.status()));
}

TEST_P(RegionTest, ConstMemoryIsReadOnlyForPeers) {
  Pages pages(4096);
  fill(pages.bytes(), 6);
  const void* const data = pages.data();
  const auto region = pair.endpoint.register_memory(data, pages.size());
  const auto asked = pair.endpoint.register_memory(pages.data(), pages.size(), {.read_only = true});
  ASSERT_EQ(region.has_value(), asked.has_value());
  if (!region) return;  // a transport that cannot keep to it
  const PeerRegion theirs = pair.peer.region(4096);
  const auto id = pair.peer.number(fmt::format("import {} {}", pair.at_peer, to_hex(region->descriptor())));
  const auto ask = [&](const char* verb) {
    const std::string where = fmt::format("{} {} 0 4096 {} {}", pair.at_peer, theirs.index, id,
                                          reinterpret_cast<std::uintptr_t>(data));
    return pair.peer.wait(pair.peer.number(fmt::format("{} {}", verb, where)));
  };
  EXPECT_TRUE(is_error(ask("write"), {ErrorCode::kPermissionDenied}));
  EXPECT_TRUE(is_ok(ask("read")));
  EXPECT_TRUE(is_ok(status_of(pair.peer.call(fmt::format("check {} 0 4096 6", theirs.index)))));
}

TEST_P(RegionTest, OfMemoryThatIsCoveredTheLatestUsedIsKept) {
  const std::size_t kept = 4096;
  Pages pages(2 * kept + 64);
  const std::size_t before = pair.endpoint.stats().registered_regions;
  const auto cover = [&](std::size_t first, std::size_t count) {
    std::vector<LocalSpan> spans;
    for (std::size_t i = first; i < first + count; ++i) {
      spans.push_back({RegionId{0}, pages.data() + 2 * i, 1});
    }
    EXPECT_TRUE(is_ok(status_of(pair.endpoint.cover(spans))));
    return spans;
  };
  const auto all = cover(0, kept);
  EXPECT_EQ(cover(0, 1)[0].region, all[0].region) << "used again, and so not the oldest";
  cover(kept, 1);
  EXPECT_EQ(pair.endpoint.stats().registered_regions, before + kept);
  EXPECT_EQ(cover(0, 1)[0].region, all[0].region);
  EXPECT_NE(cover(1, 1)[0].region, all[1].region) << "its region had to go";
}

TEST_P(RegionTest, ForgedKeysAreRefusedAndHarmNothing) {
  const PeerRegion theirs = pair.peer.region(kMiB);
  EXPECT_TRUE(is_ok(write(theirs.descriptor, 0, 4096))) << "also with the true one known";
  for (std::size_t byte = 0; byte < theirs.descriptor.key.size(); byte += 5) {
    RegionDescriptor forged = theirs.descriptor;
    forged.key[byte] ^= std::byte{1};
    EXPECT_TRUE(is_error(write(forged, 0, 4096), kRefused));
    EXPECT_TRUE(is_error(read(forged, 0, 4096), kRefused));
  }
  RegionDescriptor other = theirs.descriptor;
  other.region = RegionId{4711};
  EXPECT_TRUE(is_error(write(other, 0, 4096), kRefused));
  EXPECT_TRUE(is_ok(peer_clear(theirs, 0, kMiB)));
  EXPECT_TRUE(is_ok(write(theirs.descriptor, 0, 4096))) << "the connection must be unharmed";
}

TEST_P(RegionTest, RangesOutsideTheRegionAreRefused) {
  const PeerRegion theirs = pair.peer.region(kMiB);
  fill(own.pages.bytes(), 1);
  RegionDescriptor wide = theirs.descriptor;
  wide.address -= 4096;
  wide.size = std::uint64_t{1} << 40;
  EXPECT_TRUE(is_error(write(wide, 0, 4096), kRefused)) << "before the region";
  EXPECT_TRUE(is_error(write(wide, 4096 + kMiB - 1, 2), kRefused)) << "over its end";
  EXPECT_TRUE(is_error(read(wide, 4096 + kMiB, 1), kRefused)) << "behind it";
  EXPECT_TRUE(
      is_error(write(theirs.descriptor, ~std::uint64_t{0} - theirs.descriptor.address - 10, 100), kRefused))
      << "around the end of the address space";
  EXPECT_TRUE(is_ok(peer_clear(theirs, 0, kMiB)));
  EXPECT_TRUE(is_ok(write(theirs.descriptor, kMiB - 4096, 4096))) << "the connection must be unharmed";
}

TEST_P(RegionTest, NarrowedDescriptorsWork) {
  const PeerRegion theirs = pair.peer.region(kMiB);
  fill(own.pages.bytes(), 4);
  RegionDescriptor narrow = theirs.descriptor;
  narrow.address += 1000;
  narrow.size = 5000;
  EXPECT_TRUE(is_ok(write(narrow, 0, 5000)));
  EXPECT_TRUE(is_ok(status_of(pair.peer.call(fmt::format("check {} 1000 5000 4", theirs.index)))));
  EXPECT_TRUE(is_ok(peer_clear(theirs, 6000, kMiB - 6000)));
}

TEST_P(RegionTest, APeerThatIsStoppedInAnImportHoldsItUpAndNoMore) {
  std::mt19937 random(1);
  const auto moment = [&] { return std::chrono::microseconds(random() % 400); };
  constexpr std::size_t kSize = 4096;
  constexpr int kRounds = scaled(200, 50);
  for (int round = 0; round != kRounds && !HasFailure(); ++round) {
    SCOPED_TRACE(round);
    const PeerRegion theirs = pair.peer.region(kSize);
    fill(own.part(0, kSize), static_cast<std::uint64_t>(round));
    auto written = std::async(std::launch::async, [&] { return write(theirs.descriptor, 0, kSize); });
    std::this_thread::sleep_for(moment());  // of the fault
    pair.peer.process().stop();
    std::this_thread::sleep_for(moment());  // of its end
    pair.peer.process().go_on();
    ASSERT_TRUE(is_ok(written.get()));
    EXPECT_TRUE(
        is_ok(status_of(pair.peer.call(fmt::format("check {} 0 {} {}", theirs.index, kSize, round)))));
    pair.peer.number(fmt::format("clear {} 0 {}", theirs.index, kSize));
    EXPECT_TRUE(is_ok(status_of(pair.peer.call(fmt::format("drop_region {}", theirs.index)))));
    EXPECT_TRUE(is_ok(peer_clear(theirs, 0, kSize)));
  }
  EXPECT_TRUE(is_ok(pair.connection.status()));
}

TEST_P(RegionTest, DeregisteredRegionsAreRefused) {
  const PeerRegion theirs = pair.peer.region(kMiB);
  EXPECT_TRUE(is_ok(write(theirs.descriptor, 0, 4096)));
  pair.peer.number(fmt::format("drop_region {}", theirs.index));
  pair.peer.number(fmt::format("clear {} 0 {}", theirs.index, kMiB));
  fill(own.pages.bytes(), 1);
  EXPECT_TRUE(is_error(write(theirs.descriptor, 0, 4096), kRefused));
  EXPECT_TRUE(is_error(read(theirs.descriptor, 0, 4096), kRefused));
  EXPECT_TRUE(is_ok(peer_clear(theirs, 0, kMiB)));
}

TEST_P(RegionTest, NothingIsTouchedAfterDeregistrationReturns) {
  const std::size_t size = static_cast<std::size_t>(scaled(64, 16)) * kMiB;
  OwnRegion source(pair.endpoint, size);
  fill(source.pages.bytes(), 1);
  for (int round = 0; round < 5; ++round) {
    const PeerRegion theirs = pair.peer.region(size);
    const auto id = pair.connection.import_region(theirs.descriptor);
    ASSERT_TRUE(is_ok(status_of(id)));
    std::vector<Transfer> writes;
    for (int i = 0; i < 6; ++i) {
      writes.push_back(pair.connection.write(source.span(0, size), {*id, theirs.descriptor.address, size}));
    }
    pair.peer.number(fmt::format("drop_region {}", theirs.index));
    pair.peer.number(fmt::format("clear {} 0 {}", theirs.index, size));
    for (const Transfer& write : writes) {
      const Status done = write.wait(kLimit);
      if (!done) {
        EXPECT_TRUE(is_error(done, kRefused));
      }
    }
    EXPECT_TRUE(is_ok(peer_clear(theirs, 0, size)));
  }
  EXPECT_TRUE(is_ok(pair.connection.status()));
}

TEST_P(RegionTest, DescriptorsOfAnotherEndpointAreRefused) {
  const PeerRegion theirs = pair.peer.region(4096);
  RegionDescriptor foreign = theirs.descriptor;
  foreign.incarnation += 1;
  EXPECT_TRUE(is_error(status_of(pair.connection.import_region(foreign)), {ErrorCode::kPermissionDenied}));
}

}  // namespace
}  // namespace p2p::testing::region
