// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "support/peer.h"
#include "support/transports.h"

namespace p2p::testing {
namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
constexpr std::uint64_t kSize = 4 * kGiB + kGiB / 2 + 5;
constexpr std::uint64_t kPart = 1 << 20;

std::uint64_t available_bytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string word; file >> word;) {
    if (word != "MemAvailable:") continue;
    std::uint64_t kibibytes = 0;
    file >> kibibytes;
    return kibibytes * 1024;
  }
  return 0;
}

class LargeTest : public OverTransport {
 protected:
  void SetUp() override {
    if (available_bytes() < 8 * kGiB) GTEST_SKIP() << "needs 8 GiB of memory";
  }
};
P2P_OVER_TRANSPORTS(LargeTest);

TEST_P(LargeTest, OneWriteOverFourGibibytes) {
  Pair pair({.transport = GetParam()});
  OwnRegion own(pair.endpoint, kSize);
  const PeerRegion theirs = pair.peer.region(kSize);
  const auto id = pair.connection.import_region(theirs.descriptor);
  ASSERT_TRUE(is_ok(status_of(id)));
  // Sparse: only what is looked at below is ever more than a page of zeros.
  const std::uint64_t parts[] = {0, 2 * kGiB - kPart / 2, 4 * kGiB - kPart / 2, kSize - kPart};
  for (const std::uint64_t part : parts) fill(own.part(part, kPart), part + 1);
  const Transfer write = pair.connection.write(own.span(0, kSize), {*id, theirs.descriptor.address, kSize});
  ASSERT_TRUE(is_ok(write.wait(4 * kLimit)));
  EXPECT_EQ(write.bytes(), kSize);
  for (const std::uint64_t part : parts) {
    EXPECT_TRUE(is_ok(
        status_of(pair.peer.call(fmt::format("check {} {} {} {}", theirs.index, part, kPart, part + 1)))));
  }
  EXPECT_TRUE(is_ok(
      status_of(pair.peer.call(fmt::format("check_clear {} {} {}", theirs.index, 4 * kGiB + kPart, kPart)))));
}

}  // namespace
}  // namespace p2p::testing
