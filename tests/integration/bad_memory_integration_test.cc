// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Registered memory that turned bad, here or at the peer: the transfer that touches it fails, with the cause,
// and nothing else does.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "support/peer.h"
#include "support/transports.h"

namespace p2p::testing::bad_memory {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kBad = 4 * kMiB;  // of each region that turned bad: its second half
constexpr std::size_t kSlot = std::size_t{128} << 10;
constexpr std::size_t kSlots = 16;
constexpr std::array kAllBad{Bad::kReadOnly, Bad::kProtected, Bad::kCut};
constexpr std::array<std::size_t, 5> kSizes{64, 4096, 40000, 300000, 2 * kMiB};

bool fails_to_read(Bad how) { return how != Bad::kReadOnly; }

class BadMemoryTest : public OverTransport {
 protected:
  struct Remote {
    PeerRegion region;
    RemoteRegionId id{};

    RemoteSpan span(std::size_t offset, std::size_t size) const {
      return {id, region.descriptor.address + offset, size};
    }
  };

  /// A transfer under way, and what is to come of it.
  struct Expected {
    Transfer transfer;
    bool fails = false;
    std::function<void()> check;
  };

  BadMemoryTest() : pair_(plan()), own_(pair_.endpoint, kSlots * kSlot), theirs_(remote(kSlots * kSlot)) {
    for (const Bad how : kAllBad) {
      bad_here_.emplace_back(pair_.endpoint, kBad);
      spoil(bad_here_.back().part(kBad / 2, kBad / 2), how);
      bad_there_.push_back(remote(kBad));
      command(fmt::format("spoil {} {} {} {}", bad_there_.back().region.index, kBad / 2, kBad / 2,
                          static_cast<unsigned>(how)));
    }
  }

  static EndpointPlan plan() {
    ::setenv("SOFTNET_INTERFACES", "lo", 1);
    EndpointPlan plan = plan_over(GetParam());
    if (plan.transport == "nccl_net") plan.plugin = P2P_SOFTNET;
    plan.workers = kSharingWorkers;
    return plan;
  }

  Remote remote(std::size_t size) {
    Remote made{pair_.peer.region(size), {}};
    const auto id = pair_.connection.import_region(made.region.descriptor);
    EXPECT_TRUE(is_ok(status_of(id)));
    if (id) made.id = *id;
    return made;
  }

  void command(const std::string& words) {
    const auto done = pair_.peer.call(words);
    EXPECT_TRUE(done) << words << ": " << done.error().message;
  }

  void check_theirs(std::size_t offset, std::size_t size, std::uint64_t seed) {
    command(fmt::format("check {} {} {} {}", theirs_.region.index, offset, size, seed));
  }

  /// A write or read of good memory, of a slot that nothing else uses now.
  Expected good(bool write, std::size_t slot, std::size_t size, std::uint64_t seed) {
    const std::size_t at = slot * kSlot;
    if (write) {
      fill(own_.part(at, size), seed);
      return {pair_.connection.write(own_.span(at, size), theirs_.span(at, size)), false,
              [this, at, size, seed] { check_theirs(at, size, seed); }};
    }
    command(fmt::format("fill {} {} {} {}", theirs_.region.index, at, size, seed));
    return {pair_.connection.read(own_.span(at, size), theirs_.span(at, size)), false,
            [this, at, size, seed] { EXPECT_EQ(difference(own_.part(at, size), seed), std::nullopt); }};
  }

  /// One whose memory is bad, here or there: from `before` bytes ahead of the bad half on.
  Expected bad(bool write, bool here, Bad how, std::size_t size, std::size_t before) {
    const auto which = static_cast<std::size_t>(how);
    const std::size_t at = kBad / 2 - before;
    const LocalSpan local = here ? bad_here_[which].span(at, size) : bad_spare_.span(0, size);
    const RemoteSpan far = here ? spare_there_.span(0, size) : bad_there_[which].span(at, size);
    const bool reads_bad = write == here;
    Transfer transfer = write ? pair_.connection.write(local, far) : pair_.connection.read(local, far);
    return {std::move(transfer), !reads_bad || fails_to_read(how), {}};
  }

  static void expect(const Expected& one) {
    const Status ended = one.transfer.wait(kLimit);
    if (one.fails) {
      ASSERT_TRUE(is_error(ended, {ErrorCode::kSystem}));
      EXPECT_NE(ended.error().message.find("Bad address"), std::string::npos) << ended.error().message;
    } else {
      ASSERT_TRUE(is_ok(ended));
      if (one.check) one.check();
    }
  }

  void expect_unharmed() {
    EXPECT_TRUE(is_ok(pair_.connection.status()));
    EXPECT_EQ(pair_.connection.stats().channels_lost, 0u);
  }

  Pair pair_;
  OwnRegion own_;
  Remote theirs_;
  OwnRegion bad_spare_{pair_.endpoint, kBad};  // the good end of a transfer whose other one is bad
  Remote spare_there_ = remote(kBad);
  std::vector<OwnRegion> bad_here_;
  std::vector<Remote> bad_there_;
};
INSTANTIATE_TEST_SUITE_P(Over, BadMemoryTest, ::testing::Values("tcp", "cma", "tcp_tls", "nccl_net"),
                         transport_name);

TEST_P(BadMemoryTest, FailsItsTransferAloneAndSaysWhy) {
  std::uint64_t seed = 0;
  for (const Bad how : kAllBad) {
    for (const std::size_t size : kSizes) {
      for (unsigned which = 0; which != 8; ++which) {
        const bool write = (which & 1) != 0;
        const bool here = (which & 2) != 0;
        const std::size_t before = (which & 4) != 0 ? size / 2 : 0;
        SCOPED_TRACE(fmt::format("{} {} bytes, {} of them good, bad {} (kind {})", write ? "write" : "read",
                                 size, before, here ? "here" : "there", static_cast<unsigned>(how)));
        std::vector<Expected> all;
        for (std::size_t slot = 0; slot != 6; ++slot) {
          if (slot == 3) all.push_back(bad(write, here, how, size, before));
          all.push_back(good(slot % 2 == 0, slot, slot % 3 == 0 ? 700 : kSlot, ++seed));
        }
        for (const Expected& one : all) expect(one);
        if (HasFailure()) return;
      }
    }
  }
  expect_unharmed();
}

TEST_P(BadMemoryTest, FailsItsMessageAtBothEndsAndTheNextOneComes) {
  const auto whole = [](Transfer transfer) { return transfer.wait(kLimit); };
  for (const std::size_t size : {std::size_t{64}, std::size_t{16384}, std::size_t{20000}, kMiB}) {
    for (unsigned which = 0; which != 4; ++which) {
      const bool sent_from_here = (which & 1) != 0;
      const bool bad_here = (which & 2) != 0;
      SCOPED_TRACE(fmt::format("{} bytes {} here, bad {}", size, sent_from_here ? "from" : "to",
                               bad_here ? "here" : "there"));
      const auto cut = static_cast<std::size_t>(Bad::kCut);
      const LocalSpan mine = bad_here ? bad_here_[cut].span(kBad / 2, size) : own_.span(0, size);
      const std::uint64_t region = bad_here ? theirs_.region.index : bad_there_[cut].region.index;
      const std::uint64_t at = bad_here ? 0 : kBad / 2;
      const std::uint64_t there = pair_.peer.number(
          fmt::format("{} {} {} {} {}", sent_from_here ? "recv" : "send", pair_.at_peer, region, at, size));
      const Status ended = whole(sent_from_here ? pair_.connection.send(mine) : pair_.connection.recv(mine));
      EXPECT_TRUE(is_error(ended, {ErrorCode::kSystem}));
      EXPECT_TRUE(is_error(pair_.peer.wait(there), {ErrorCode::kSystem}));

      const std::uint64_t seed = size + which;
      const std::size_t after = std::min(size, kSlot);
      fill(own_.part(0, after), seed);
      const std::uint64_t next =
          pair_.peer.number(fmt::format("recv {} {} 0 {}", pair_.at_peer, theirs_.region.index, after));
      EXPECT_TRUE(is_ok(whole(pair_.connection.send(own_.span(0, after)))));
      EXPECT_TRUE(is_ok(pair_.peer.wait(next)));
      check_theirs(0, after, seed);
      if (HasFailure()) return;
    }
  }
  expect_unharmed();
}

TEST_P(BadMemoryTest, HarmsNothingInARandomMix) {
  const std::uint64_t seed = std::random_device{}();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937_64 random(seed);
  std::array<std::optional<Expected>, kSlots> under_way;
  const int steps = scaled(1500, 200);
  for (int step = 0; step != steps; ++step) {
    const std::size_t slot = random() % kSlots;
    if (under_way[slot]) expect(*under_way[slot]);
    if (HasFailure()) return;
    const bool write = random() % 2 == 0;
    const std::size_t size = 1 + random() % (random() % 4 == 0 ? kSlot : 5000);
    if (random() % 4 != 0) {
      under_way[slot] = good(write, slot, size, random());
      continue;
    }
    const Bad how = kAllBad[random() % kAllBad.size()];
    under_way[slot] = bad(write, random() % 2 == 0, how, size, random() % size);
  }
  for (const auto& one : under_way) {
    if (one) expect(*one);
  }
  expect_unharmed();
}

}  // namespace
}  // namespace p2p::testing::bad_memory
