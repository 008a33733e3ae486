// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// UCCL_P2P_TLS: what the two sides' wishes come to, and data over encrypted streams.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "support/peer.h"
#include "support/sides.h"

namespace p2p::testing::encryption {
namespace {

using ::testing::HasSubstr;

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

/// Connected, with a region at each side.
struct Joined : Sides {
  Joined(const EndpointPlan& here, const EndpointPlan& there) : Sides(here, there) { join(); }
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
      Joined sides(plan(mine), plan(theirs));
      const bool encrypts = mine != Encryption::kOff || theirs != Encryption::kOff;
      sides.write(1);
      EXPECT_EQ(sides.route().find("TLS") != std::string::npos, encrypts) << sides.route();
      const Stats stats = sides.connection.stats();
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
  tired.idle = std::chrono::seconds(3);  // they do not rest again before they are looked at
  Joined sides(tired, tired);
  sides.write(1);
  const auto deadline = std::chrono::steady_clock::now() + kLimit;
  while (sides.route().find("at rest") == std::string::npos) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    ::usleep(1000);
  }
  sides.read(2);
  EXPECT_THAT(sides.route(), HasSubstr("TLS"));
}

TEST_F(EncryptionTest, APeerThatDiesInTheMiddleIsGone) {
  Joined sides(plan(Encryption::kOn), plan(Encryption::kOn));
  sides.write(1);
  std::vector<Transfer> transfers;
  for (int i = 0; i != 50; ++i) {
    transfers.push_back(i % 2 == 0 ? sides.connection.write(sides.own.span(0, Sides::kSize), sides.target)
                                   : sides.connection.read(sides.own.span(0, Sides::kSize), sides.target));
  }
  ASSERT_TRUE(is_ok(transfers.front().wait(kLimit)));
  // One that nobody takes is under way, also where all others are over by now.
  sides.peer.process().stop();
  transfers.push_back(sides.connection.write(sides.own.span(0, Sides::kSize), sides.target));
  sides.peer.process().kill_now();
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
  Joined sides(plan(Encryption::kOn), plan(Encryption::kOn));
  for (std::uint64_t round = 1; round != 20; ++round) {
    fill(sides.own.pages.bytes(), round);
    Transfer write = sides.connection.write(sides.own.span(0, Sides::kSize), sides.target);
    write.cancel();
    (void)write.wait(kLimit);
    Transfer read = sides.connection.read(sides.own.span(0, Sides::kSize), sides.target);
    read.cancel();
    (void)read.wait(kLimit);
  }
  sides.write(100);
  sides.read(101);
}

}  // namespace
}  // namespace p2p::testing::encryption
