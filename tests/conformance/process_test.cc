// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Two processes: that bytes cross, and that a process which is killed is noticed.
#include "conformance/process.h"

#include "conformance/pair.h"
#include "support/devices.h"

namespace p2p::conformance {
namespace {

constexpr std::array kBothRoles{Role::kConnector, Role::kAcceptor};
constexpr std::size_t kBytes = OtherProcess::kServedBytes;

/// By when the death of a process must be known.
const std::chrono::seconds kBound{on_slow_machine() ? 30 : 5};

class ProcessConformance : public Conformance {
 protected:
  /// False if there is nothing more to test: the transport stays within one process, and says so.
  bool connect(OtherProcess& other, Peer& mine) {
    const Status status = other.connect(mine);
    if (capabilities_.reach == Reach::kProcess) {
      EXPECT_FALSE(status);
      EXPECT_EQ(status.error().code, ErrorCode::kUnavailable) << status.error().message;
      return false;
    }
    EXPECT_TRUE(status) << status.error().message;
    return status.has_value();
  }

  /// A TCP stream that broke says nothing of its peer's process: what it carried may still lie there unread.
  /// The session, which ends with the process, says it. nccl_net knows no more than that of the batches that
  /// were under way.
  static void end_session(Peer& mine, bool idle) {
    if (GetParam().name == "tcp" || (GetParam().name == "nccl_net" && !idle)) mine.end_session();
  }
};

TEST_P(ProcessConformance, BytesCross) {
  for (const Role role : kBothRoles) {
    Peer mine(GetParam().make(options(), test_devices(options())));
    OtherProcess other(GetParam().name, role);
    if (!connect(other, mine)) return;
    const Memory local(mine.transport(), kBytes);
    const auto key = mine.import(other.region());
    const auto remote = other.address();
    fill_pattern(local.bytes(), 3);
    ASSERT_TRUE(mine.transfer(Operation::kWrite, {segment(local, 0, *key, remote, kBytes)}));
    set_all(local.bytes(), std::byte{});
    ASSERT_TRUE(mine.transfer(Operation::kRead, {segment(local, 0, *key, remote, kBytes)}));
    EXPECT_EQ(first_mismatch(local.bytes(), 3), std::nullopt);
  }
}

TEST_P(ProcessConformance, KilledMidTransfer) {
  for (const Operation operation : {Operation::kWrite, Operation::kRead}) {
    for (const Role role : kBothRoles) {
      Peer mine(GetParam().make(options(), test_devices(options())));
      OtherProcess other(GetParam().name, role);
      if (!connect(other, mine)) return;
      const Memory local(mine.transport(), kBytes);
      const auto key = mine.import(other.region());
      const auto remote = other.address();
      const std::vector<Segment> segments(32, segment(local, 0, *key, remote, kBytes));
      const auto job = mine.submit(operation, segments);
      ASSERT_TRUE(mine.wait_started(*job, 2));
      other.kill();
      end_session(mine, false);
      ASSERT_TRUE(mine.wait(*job, kBound));
      const Status status = job->status();
      ASSERT_FALSE(status) << "all of it ended before the kill";
      for (const Status& outcome : job->outcomes) {
        if (outcome) continue;
        ASSERT_EQ(outcome.error().code, ErrorCode::kPeerGone) << outcome.error().message;
      }
      ASSERT_TRUE(mine.wait_failed(kBound));
      EXPECT_EQ(mine.channel_error().code, ErrorCode::kPeerGone) << mine.channel_error().message;
      EXPECT_TRUE(local.guards_are_intact());
    }
  }
}

TEST_P(ProcessConformance, KilledWhileIdle) {
  for (const Role role : kBothRoles) {
    Peer mine(GetParam().make(options(), test_devices(options())));
    OtherProcess other(GetParam().name, role);
    if (!connect(other, mine)) return;
    other.kill();
    end_session(mine, true);
    ASSERT_TRUE(mine.wait_failed(kBound));
    EXPECT_EQ(mine.channel_error().code, ErrorCode::kPeerGone) << mine.channel_error().message;
  }
}

P2P_FOR_EVERY_TRANSPORT(ProcessConformance);

}  // namespace
}  // namespace p2p::conformance
