// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// UCCL_P2P_TLS: what the two sides' wishes come to, and data over encrypted streams.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "support/peer.h"

namespace p2p::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kSize = 3'000'001;
constexpr std::array kWishes{Encryption::kOff, Encryption::kOn, Encryption::kRequire};

class EncryptionTest : public ::testing::Test {
 protected:
  EncryptionTest() {
    std::filesystem::create_directories(folder_);
    std::ofstream(key_) << "one:a secret of more than sixteen bytes";
    std::filesystem::permissions(key_, std::filesystem::perms::owner_read);
  }
  ~EncryptionTest() override { std::filesystem::remove_all(folder_); }

  EndpointPlan plan(Encryption tls, const std::string& transport = "tcp") const {
    return {.transport = transport, .key_file = key_.string(), .tls = tls};
  }

  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / fmt::format("p2p_encryption_{}", ::getpid());
  const std::filesystem::path key_ = folder_ / "key";
};

std::string host_route(const Connection& connection) { return connection.routes().front().detail; }

/// A peer process and a region at each side.
struct Sides {
  Sides(const EndpointPlan& here, const EndpointPlan& there)
      : pair(here, there), own(pair.endpoint, kSize), theirs(pair.peer.region(kSize)) {
    target = {pair.connection.import_region(theirs.descriptor).value(), theirs.descriptor.address, kSize};
  }

  void expect_there(std::uint64_t seed) {
    EXPECT_TRUE(is_ok(status_of(pair.peer.call(fmt::format("check {} 0 {} {}", theirs.index, kSize, seed)))));
  }

  void write(std::uint64_t seed) {
    fill(own.pages.bytes(), seed);
    ASSERT_TRUE(is_ok(pair.connection.write(own.span(0, kSize), target).wait(kLimit)));
    expect_there(seed);
  }
  void read(std::uint64_t seed) {
    pair.peer.number(fmt::format("fill {} 0 {} {}", theirs.index, kSize, seed));
    ASSERT_TRUE(is_ok(pair.connection.read(own.span(0, kSize), target).wait(kLimit)));
    EXPECT_EQ(difference(own.pages.bytes(), seed), std::nullopt);
  }
  void message(std::uint64_t seed) {
    fill(own.pages.bytes(), seed);
    const auto receive = pair.peer.number(fmt::format("recv {} {} 0 {}", pair.at_peer, theirs.index, kSize));
    ASSERT_TRUE(is_ok(pair.connection.send(own.span(0, kSize)).wait(kLimit)));
    ASSERT_TRUE(is_ok(pair.peer.wait(receive)));
    expect_there(seed);
  }
  void list(std::uint64_t seed) {
    fill(own.pages.bytes(), seed);
    std::vector<LocalSpan> from;
    std::vector<RemoteSpan> to;
    for (std::uint64_t at = 0; at < kSize; at += 4099) {
      const std::uint64_t size = std::min<std::uint64_t>(4099, kSize - at);
      from.push_back(own.span(at, size));
      to.push_back({target.region, target.address + at, size});
    }
    ASSERT_TRUE(is_ok(pair.connection.write(from, to).wait(kLimit)));
    expect_there(seed);
  }

  Pair pair;
  OwnRegion own;
  PeerRegion theirs;
  RemoteSpan target;
};

TEST_F(EncryptionTest, EachPairOfWishesIsHonouredOrRefused) {
  for (const Encryption mine : kWishes) {
    for (const Encryption theirs : kWishes) {
      SCOPED_TRACE(fmt::format("{} and {}", static_cast<int>(mine), static_cast<int>(theirs)));
      const bool off = mine == Encryption::kOff || theirs == Encryption::kOff;
      const bool required = mine == Encryption::kRequire || theirs == Encryption::kRequire;
      if (off && required) {
        Endpoint dials = make_endpoint(plan(mine));
        Endpoint accepts = make_endpoint(plan(theirs));
        const auto refused = dials.connect(accepts.address(), accepts.port(), kLimit);
        ASSERT_TRUE(is_error(status_of(refused), {ErrorCode::kPermissionDenied}));
        EXPECT_THAT(refused.error().message, HasSubstr("UCCL_P2P_TLS"));
        continue;
      }
      Sides sides(plan(mine), plan(theirs));
      const bool encrypts = mine != Encryption::kOff || theirs != Encryption::kOff;
      sides.write(1);
      EXPECT_EQ(host_route(sides.pair.connection).find("TLS") != std::string::npos, encrypts)
          << host_route(sides.pair.connection);
      const Stats stats = sides.pair.connection.stats();
      EXPECT_NE(stats.channels, 0U);
      EXPECT_EQ(stats.channels_encrypted, encrypts ? stats.channels : 0);
      sides.read(2);
      sides.message(3);
      sides.list(4);
    }
  }
}

TEST_F(EncryptionTest, AsksForKeysWhereThereAreNone) {
  for (const Encryption wish : {Encryption::kOn, Encryption::kRequire}) {
    Options options = EndpointPlan{}.options();
    options.tls = wish;
    const auto made = Endpoint::create(options);
    ASSERT_TRUE(is_error(status_of(made), {ErrorCode::kInvalidArgument}));
    EXPECT_THAT(made.error().message, HasSubstr("UCCL_P2P_TLS"));
    EXPECT_THAT(made.error().message, HasSubstr("UCCL_P2P_KEY_FILE"));
  }
}

TEST_F(EncryptionTest, RequiredItLeavesOutWhatCannotEncryptAndSaysSo) {
  const Endpoint strict = make_endpoint(plan(Encryption::kRequire, ""));
  const Endpoint usual = make_endpoint(plan(Encryption::kOn, ""));
  for (const auto& row : strict.transports()) {
    const bool cannot = row.name == "rdma" || row.name == "nccl_net";
    EXPECT_EQ(row.reason.find("cannot encrypt") != std::string::npos, cannot) << row.name << row.reason;
  }
  for (const auto& row : usual.transports()) {
    EXPECT_EQ(row.reason.find("cannot encrypt"), std::string::npos) << row.name;
  }
  EndpointPlan alone = plan(Encryption::kRequire, "nccl_net");
  const auto nothing = Endpoint::create(alone.options());
  ASSERT_FALSE(nothing);
  EXPECT_THAT(nothing.error().message, HasSubstr("UCCL_P2P_TLS=require"));
}

TEST_F(EncryptionTest, StreamsThatRestAreEncryptedWhenTheyComeBack) {
  EndpointPlan tired = plan(Encryption::kOn);
  tired.idle = std::chrono::milliseconds(100);
  Sides sides(tired, tired);
  sides.write(1);
  const auto deadline = std::chrono::steady_clock::now() + kLimit;
  while (host_route(sides.pair.connection).find("at rest") == std::string::npos) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    ::usleep(1000);
  }
  sides.read(2);
  EXPECT_THAT(host_route(sides.pair.connection), HasSubstr("TLS"));
}

TEST_F(EncryptionTest, APeerThatDiesInTheMiddleIsGone) {
  Sides sides(plan(Encryption::kOn), plan(Encryption::kOn));
  sides.write(1);
  std::vector<Transfer> transfers;
  for (int i = 0; i != 50; ++i) {
    transfers.push_back(i % 2 == 0 ? sides.pair.connection.write(sides.own.span(0, kSize), sides.target)
                                   : sides.pair.connection.read(sides.own.span(0, kSize), sides.target));
  }
  ASSERT_TRUE(is_ok(transfers.front().wait(kLimit)));
  sides.pair.peer.process().kill_now();
  std::size_t failed = 0;
  for (const Transfer& transfer : transfers) {
    const Status ended = transfer.wait(kLimit);
    if (ended) continue;
    EXPECT_TRUE(is_error(ended, {ErrorCode::kPeerGone}));
    ++failed;
  }
  EXPECT_NE(failed, 0U);
}

TEST_F(EncryptionTest, ACancelledTransferLeavesTheStreamInOrder) {
  Sides sides(plan(Encryption::kOn), plan(Encryption::kOn));
  for (std::uint64_t round = 1; round != 20; ++round) {
    fill(sides.own.pages.bytes(), round);
    Transfer write = sides.pair.connection.write(sides.own.span(0, kSize), sides.target);
    write.cancel();
    (void)write.wait(kLimit);
    Transfer read = sides.pair.connection.read(sides.own.span(0, kSize), sides.target);
    read.cancel();
    (void)read.wait(kLimit);
  }
  sides.write(100);
  sides.read(101);
}

}  // namespace
}  // namespace p2p::testing
