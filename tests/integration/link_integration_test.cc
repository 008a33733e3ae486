// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <vector>

#include "support/hex.h"
#include "support/peer.h"

namespace p2p::testing::link {
namespace {

using Clock = std::chrono::steady_clock;

// Each write has its own part: no two may have the same bytes on their way.
constexpr std::size_t kPart = std::size_t{6} << 20;
constexpr unsigned kWrites = 20;
constexpr std::size_t kSize = (kWrites + 2) * kPart;

/// Two hosts joined by a cable, as network namespaces; gone with the object.
class Cable {
 public:
  Cable() : left_(fmt::format("p2p-{}-l", ::getpid())), right_(fmt::format("p2p-{}-r", ::getpid())) {
    made_ = run({"ip", "netns", "add", left_});
    if (!made_) return;
    for (const auto& words : std::vector<std::vector<std::string>>{
             {"ip", "netns", "add", right_},
             {"ip", "-n", left_, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns",
              right_},
             {"ip", "-n", left_, "addr", "add", "10.99.0.1/24", "dev", "cable"},
             {"ip", "-n", right_, "addr", "add", "10.99.0.2/24", "dev", "cable"},
             {"ip", "-n", left_, "link", "set", "lo", "up"},
             {"ip", "-n", right_, "link", "set", "lo", "up"},
             {"ip", "-n", right_, "link", "set", "cable", "up"},
             {"ip", "-n", left_, "link", "set", "cable", "up"}}) {
      if (made_) made_ = run(words);
    }
  }
  ~Cable() {
    (void)run({"ip", "netns", "del", left_});
    (void)run({"ip", "netns", "del", right_});
  }
  Cable(const Cable&) = delete;
  Cable& operator=(const Cable&) = delete;

  const Status& made() const { return made_; }
  std::vector<std::string> left() const { return {"ip", "netns", "exec", left_}; }
  std::vector<std::string> right() const { return {"ip", "netns", "exec", right_}; }

  Status set(const char* state) const { return run({"ip", "-n", left_, "link", "set", "cable", state}); }

 private:
  std::string left_;
  std::string right_;
  Status made_;
};

class LinkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "network namespaces need root";
    ASSERT_TRUE(is_ok(cable.made()));
  }

  static EndpointPlan plan(const char* address) {
    EndpointPlan plan;
    plan.address = address;
    return plan;
  }

  static std::uint64_t connect(Peer& from, Peer& to) {
    const std::uint64_t connection = from.number(fmt::format("connect {} {} 20000", to.address(), to.port()));
    to.accept();
    return connection;
  }

  Cable cable;
};

/// Writes of the region, part after part.
class Writes {
 public:
  Writes(Peer& from, std::uint64_t connection, const PeerRegion& own, const PeerRegion& theirs)
      : from_(from),
        id_(from.number(fmt::format("import {} {}", connection, to_hex(theirs.descriptor)))),
        connection_(connection),
        own_(own),
        address_(theirs.descriptor.address) {}

  /// Posts the next one; the transfer's number.
  std::uint64_t post() {
    const std::size_t at = next_++ * kPart;
    return from_.number(
        fmt::format("write {} {} {} {} {} {}", connection_, own_.index, at, kPart, id_, address_ + at));
  }

  /// Posts many after one that has ended.
  std::vector<std::uint64_t> start() {
    EXPECT_TRUE(is_ok(from_.wait(post())));
    std::vector<std::uint64_t> writes;
    while (writes.size() != kWrites) writes.push_back(post());
    return writes;
  }

 private:
  Peer& from_;
  const std::uint64_t id_;
  const std::uint64_t connection_;
  const PeerRegion own_;
  const std::uint64_t address_;
  std::size_t next_ = 0;
};

TEST_F(LinkTest, DroppedLinkFailsTransfersInTimeAndReconnectWorks) {
  Peer left(plan("10.99.0.1"), cable.left());
  Peer right(plan("10.99.0.2"), cable.right());
  const std::uint64_t connection = connect(left, right);
  const PeerRegion own = left.region(kSize);
  const PeerRegion theirs = right.region(kSize);
  left.number(fmt::format("fill {} 0 {} 1", own.index, kSize));
  Writes all(left, connection, own, theirs);
  auto writes = all.start();
  ASSERT_TRUE(is_ok(cable.set("down")));
  const auto start = Clock::now();
  writes.push_back(all.post());
  EXPECT_TRUE(is_error(left.wait(writes.back()), {ErrorCode::kPeerGone}));
  EXPECT_LT(Clock::now() - start, EndpointPlan{}.keepalive + kWideMargin);
  for (const std::uint64_t one : writes) {
    const Status done = left.wait(one, EndpointPlan{}.keepalive + kWideMargin);
    if (!done) {
      EXPECT_TRUE(is_error(done, {ErrorCode::kPeerGone}));
    }
  }
  // The other side, which only listened, has seen it too.
  const auto deadline = Clock::now() + EndpointPlan{}.keepalive + kWideMargin;
  while (right.number("connections") != 0 && Clock::now() < deadline) {
  }
  EXPECT_EQ(right.number("connections"), 0u);

  ASSERT_TRUE(is_ok(cable.set("up")));
  const std::uint64_t again = connect(left, right);
  Writes anew(left, again, own, theirs);
  writes = anew.start();
  writes.push_back(anew.post());
  for (const std::uint64_t one : writes) EXPECT_TRUE(is_ok(left.wait(one)));
  EXPECT_TRUE(is_ok(status_of(right.call(fmt::format("check {} 0 {} 1", theirs.index, kSize)))));
}

TEST_F(LinkTest, ShortOutageIsSurvived) {
  EndpointPlan patient = plan("10.99.0.1");
  patient.keepalive = std::chrono::seconds(20);
  EndpointPlan other = plan("10.99.0.2");
  other.keepalive = patient.keepalive;
  Peer left(patient, cable.left());
  Peer right(other, cable.right());
  const std::uint64_t connection = connect(left, right);
  const PeerRegion own = left.region(kSize);
  const PeerRegion theirs = right.region(kSize);
  Writes all(left, connection, own, theirs);
  auto writes = all.start();
  ASSERT_TRUE(is_ok(cable.set("down")));
  writes.push_back(all.post());
  EXPECT_TRUE(is_error(left.wait(writes.back(), std::chrono::milliseconds(300)), {ErrorCode::kTimedOut}));
  ASSERT_TRUE(is_ok(cable.set("up")));
  for (const std::uint64_t one : writes) EXPECT_TRUE(is_ok(left.wait(one)));
}

}  // namespace
}  // namespace p2p::testing::link
