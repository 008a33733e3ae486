// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>
#include <vector>

#include "support/eventually.h"
#include "support/hex.h"
#include "support/peer.h"
#include "support/sockets.h"
#include "support/transports.h"

namespace p2p::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kSize = 64 * kMiB;
constexpr std::initializer_list<ErrorCode> kGone{ErrorCode::kPeerGone};

class DeathTest : public OverTransport {
 protected:
  /// One whose stopped peers are soon taken to hang, but no live one that a busy machine holds up.
  EndpointPlan plan() const {
    EndpointPlan plan = patient();
    plan.hung = plan.keepalive + kMargin;
    return plan;
  }
  EndpointPlan patient() const {
    EndpointPlan plan = plan_over(GetParam());
    plan.workers = kSharingWorkers;
    return plan;
  }
};
P2P_OVER_TRANSPORTS_AND_TLS(DeathTest);

/// A stopped peer is gone as it hung for the time of the plan, a killed one for another reason. The text
/// tells, not the clock: a busy machine may take longer.
void expect_gone(const Status& status, const EndpointPlan& plan, int signal) {
  ASSERT_TRUE(is_error(status, kGone));
  const auto says_hung = HasSubstr(fmt::format(" for {} ms", plan.hung.count()));
  if (signal == SIGSTOP) {
    EXPECT_THAT(status.error().message, says_hung);
  } else {
    EXPECT_THAT(status.error().message, Not(says_hung));
  }
}

/// A connection to a third process that must not notice what happens to others.
class Bystander {
 public:
  explicit Bystander(const EndpointPlan& plan, Endpoint& endpoint)
      : peer_(plan), own_(endpoint, kMiB), theirs_(peer_.region(kMiB)) {
    connection_ = endpoint.connect(peer_.address(), peer_.port(), kLimit).value();
    id_ = connection_.import_region(theirs_.descriptor).value();
  }

  void expect_unharmed() {
    fill(own_.pages.bytes(), ++seed_);
    const RemoteSpan to{id_, theirs_.descriptor.address, kMiB};
    EXPECT_TRUE(is_ok(connection_.write(own_.span(0, kMiB), to).wait(kLimit)));
    EXPECT_TRUE(is_ok(status_of(peer_.call(fmt::format("check {} 0 {} {}", theirs_.index, kMiB, seed_)))));
  }

 private:
  Peer peer_;
  OwnRegion own_;
  PeerRegion theirs_;
  Connection connection_;
  RemoteRegionId id_{};
  std::uint64_t seed_ = 0;
};

enum class Work { kIdle, kWrite, kRead, kTalk };

/// Eager messages as far as there is room, others, and long ones; none is received.
void talk(const Connection& connection, const OwnRegion& own, std::vector<Transfer>& transfers) {
  for (std::size_t i = 0; i < 1500; ++i) {
    transfers.push_back(connection.notify(std::string(100, 'n')));
    transfers.push_back(connection.send(own.span(0, i % 10 == 0 ? kSize : 4000)));
  }
}

/// Many writes or reads, and the signal in their middle.
void move_and_signal(Pair& pair, const OwnRegion& own, const PeerRegion& theirs, Work work, int signal,
                     std::vector<Transfer>& transfers) {
  const RemoteSpan remote{pair.connection.import_region(theirs.descriptor).value(), theirs.descriptor.address,
                          kSize};
  const auto post = [&] {
    return work == Work::kWrite ? pair.connection.write(own.span(0, kSize), remote)
                                : pair.connection.read(own.span(0, kSize), remote);
  };
  // The first has ended, so the rest is truly under way.
  EXPECT_TRUE(is_ok(post().wait(kLimit)));
  // A killed one meets some of them, also where this thread has to wait for its turn.
  const std::size_t many = signal == SIGKILL ? 1000 : 200;
  for (std::size_t i = 0; i < many; ++i) transfers.push_back(post());
  pair.peer.process().signal(signal);
  if (signal == SIGKILL) return;
  // A transport that needs no peer is through with them before a stopped one is taken to hang.
  EXPECT_TRUE(eventually([&] {
    transfers.push_back(post());
    (void)transfers[transfers.size() - many].wait(kLimit);
    return !pair.connection.status();
  }));
}

void test_signal(const EndpointPlan& plan, Work work, int signal) {
  Pair pair(plan);
  Bystander bystander(plan, pair.endpoint);
  OwnRegion own(pair.endpoint, kSize);
  const PeerRegion theirs = pair.peer.region(kSize);
  std::vector<Transfer> transfers;
  transfers.push_back(pair.connection.recv(own.span(0, 100)));  // never met
  if (work == Work::kWrite || work == Work::kRead) {
    move_and_signal(pair, own, theirs, work, signal, transfers);
  } else {
    if (work == Work::kTalk) talk(pair.connection, own, transfers);
    pair.peer.process().signal(signal);
  }
  for (const Transfer& transfer : transfers) {
    const Status done = transfer.wait(kLimit);
    ASSERT_TRUE(transfer.done());
    // The first ones of a stopped owner may still end well over a transport that needs no peer.
    if (!done) {
      EXPECT_TRUE(is_error(done, kGone));
    }
  }
  EXPECT_TRUE(is_error(transfers.front().status(), kGone));
  if (signal == SIGKILL && work != Work::kIdle) {
    EXPECT_TRUE(is_error(transfers.back().status(), kGone));
  }
  expect_gone(pair.connection.status(), plan, signal);
  EXPECT_TRUE(is_error(pair.connection.notify("x").wait(kLimit), kGone)) << "later calls say so too";
  bystander.expect_unharmed();
}

TEST_P(DeathTest, KilledWhileIdle) { test_signal(plan(), Work::kIdle, SIGKILL); }
TEST_P(DeathTest, KilledWhileItIsWrittenTo) { test_signal(plan(), Work::kWrite, SIGKILL); }
TEST_P(DeathTest, KilledWhileItIsRead) { test_signal(plan(), Work::kRead, SIGKILL); }
TEST_P(DeathTest, KilledWhileItIsTalkedTo) { test_signal(plan(), Work::kTalk, SIGKILL); }
TEST_P(DeathTest, StoppedWhileIdle) { test_signal(plan(), Work::kIdle, SIGSTOP); }
TEST_P(DeathTest, StoppedWhileItIsWrittenTo) { test_signal(plan(), Work::kWrite, SIGSTOP); }
TEST_P(DeathTest, StoppedWhileItIsRead) { test_signal(plan(), Work::kRead, SIGSTOP); }

TEST_P(DeathTest, StoppedWhileItIsTalkedTo) { test_signal(plan(), Work::kTalk, SIGSTOP); }

/// The peer is the one that writes or reads, and dies of it.
void test_active_peer_dies(const EndpointPlan& plan, const std::string& command) {
  Pair pair(plan);
  Bystander bystander(plan, pair.endpoint);
  OwnRegion own(pair.endpoint, kSize);
  const PeerRegion theirs = pair.peer.region(kSize);
  const std::uint64_t id =
      pair.peer.number(fmt::format("import {} {}", pair.at_peer, to_hex(own.region.descriptor())));
  const auto base = reinterpret_cast<std::uintptr_t>(own.pages.data());
  // Again where all were over before the last had been told of.
  EXPECT_TRUE(eventually([&] {
    std::uint64_t last = 0;
    for (int i = 0; i < 50; ++i) {
      last = pair.peer.number(
          fmt::format("{} {} {} 0 {} {} {}", command, pair.at_peer, theirs.index, kSize, id, base));
    }
    return is_error(pair.peer.wait(last, std::chrono::milliseconds(0)), {ErrorCode::kTimedOut});
  }));
  const Transfer receive = pair.connection.recv(own.span(0, 100));
  pair.peer.process().kill_now();
  expect_gone(receive.wait(kLimit), plan, SIGKILL);
  // The memory is mine again: whoever served the peer is through with it.
  EXPECT_TRUE(is_ok(own.region.release(kLimit)));
  bystander.expect_unharmed();
}

TEST_P(DeathTest, WriterKilled) { test_active_peer_dies(plan(), "write"); }
TEST_P(DeathTest, ReaderKilled) { test_active_peer_dies(plan(), "read"); }

// Its machine answers: it is slow, which routes say, and no more than that.
TEST_P(DeathTest, AStoppedPeerIsSlowUntilItGoesOn) {
  EndpointPlan plan = patient();
  plan.keepalive = std::chrono::seconds(1);
  Pair pair(plan);
  OwnRegion own(pair.endpoint, kMiB);
  const PeerRegion theirs = pair.peer.region(kMiB);
  const auto id = pair.connection.import_region(theirs.descriptor);
  ASSERT_TRUE(is_ok(status_of(id)));
  const RemoteSpan to{*id, theirs.descriptor.address, kMiB};
  ASSERT_TRUE(is_ok(pair.connection.write(own.span(0, kMiB), to).wait(kLimit)));
  const Transfer receive = pair.connection.recv(own.span(0, 100));
  pair.peer.process().signal(SIGSTOP);
  const auto slow = [&] { return pair.connection.routes().front().detail.starts_with("slow: "); };
  EXPECT_TRUE(eventually(slow));
  EXPECT_TRUE(is_ok(pair.connection.status()));
  EXPECT_FALSE(receive.done());
  pair.peer.process().signal(SIGCONT);
  EXPECT_TRUE(eventually([&] { return !slow(); }));
  EXPECT_TRUE(is_ok(pair.connection.write(own.span(0, kMiB), to).wait(kLimit)));
  EXPECT_TRUE(is_ok(pair.connection.notify("still here").wait(kLimit)));
}

/// Processes that want all the processors there are.
class Load {
 public:
  explicit Load(int count) {
    for (int i = 0; i < count; ++i) {
      processes_.push_back(Process::spawn({"sh", "-c", "while :; do :; done"}).value());
    }
  }

 private:
  std::vector<Process> processes_;
};

// Neither side is scheduled much, and one is stopped for many keepalive times with work of all kinds under
// way.
TEST_P(DeathTest, StopsUnderLoadHarmNothing) {
  EndpointPlan plan = patient();
  plan.keepalive = std::chrono::seconds(1);
  Pair pair(plan);
  const Load load(10);
  OwnRegion own(pair.endpoint, 2 * kMiB);
  const PeerRegion theirs = pair.peer.region(2 * kMiB);
  const RemoteSpan all{pair.connection.import_region(theirs.descriptor).value(), theirs.descriptor.address,
                       2 * kMiB};
  for (const auto& [seed, stop] :
       {std::pair{1, std::chrono::milliseconds(5000)}, {2, std::chrono::milliseconds(1700)}}) {
    SCOPED_TRACE(seed);
    fill(own.pages.bytes(), static_cast<std::uint64_t>(seed));
    std::vector<Transfer> transfers;
    const auto post = [&] {
      for (int i = 0; i < 10; ++i) {
        transfers.push_back(pair.connection.write(own.span(0, 2 * kMiB), all));
        transfers.push_back(pair.connection.notify("while it stands"));
      }
    };
    post();
    pair.peer.process().signal(SIGSTOP);
    post();
    std::this_thread::sleep_for(stop);  // the fault itself
    EXPECT_TRUE(is_ok(pair.connection.status()));
    pair.peer.process().signal(SIGCONT);
    for (const Transfer& transfer : transfers) EXPECT_TRUE(is_ok(transfer.wait(kLimit)));
    EXPECT_TRUE(
        is_ok(status_of(pair.peer.call(fmt::format("check {} 0 {} {}", theirs.index, 2 * kMiB, seed)))));
    EXPECT_TRUE(is_ok(status_of(pair.peer.call(fmt::format("status {}", pair.at_peer)))));
  }
}

/// A port at which nobody listens but who asks for it: the system gives it to nobody else.
class KeptPort {
 public:
  KeptPort() {
    const int on = 1;  // as at listeners of endpoints: who asks for it gets it
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::setsockopt(socket_.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
    EXPECT_EQ(::bind(socket_.fd(), generic, size), 0);
    EXPECT_EQ(::getsockname(socket_.fd(), generic, &size), 0);
    port_ = ntohs(address.sin_port);
  }

  std::uint16_t port() const { return port_; }

 private:
  const Socket socket_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  std::uint16_t port_ = 0;
};

TEST_P(DeathTest, StoppedPeerThatGoesOnIsToldAndMayReconnect) {
  Pair pair(plan());
  pair.peer.process().signal(SIGSTOP);
  OwnRegion own(pair.endpoint, 100);
  expect_gone(pair.connection.recv(own.span(0, 100)).wait(kLimit), plan(), SIGSTOP);
  pair.peer.process().signal(SIGCONT);
  const auto again = pair.endpoint.connect(pair.peer.address(), pair.peer.port(), kLimit);
  ASSERT_TRUE(is_ok(status_of(again)));
  pair.peer.accept();
  EXPECT_TRUE(is_ok(again->notify("back").wait(kLimit)));
  EXPECT_TRUE(eventually([&] { return !pair.peer.call(fmt::format("status {}", pair.at_peer)); }));
}

TEST_P(DeathTest, RestartedPeerIsReachedAndItsOldDescriptorsAreRefused) {
  const KeptPort kept;
  EndpointPlan same = plan();
  same.port = kept.port();
  Pair pair(plan(), same);
  const PeerRegion old = pair.peer.region(4096);
  pair.peer.process().kill_now();
  Peer restarted(same);
  ASSERT_EQ(restarted.port(), same.port);
  const auto again = pair.endpoint.connect(restarted.address(), restarted.port(), kLimit);
  ASSERT_TRUE(is_ok(status_of(again)));
  EXPECT_TRUE(is_error(status_of(again->import_region(old.descriptor)), {ErrorCode::kPermissionDenied}));
  OwnRegion own(pair.endpoint, 4096);
  const PeerRegion fresh = restarted.region(4096);
  const auto id = again->import_region(fresh.descriptor);
  ASSERT_TRUE(is_ok(status_of(id)));
  EXPECT_TRUE(is_ok(again->write(own.span(0, 4096), {*id, fresh.descriptor.address, 4096}).wait(kLimit)));
}

TEST(Watcher, HearsOfTheOpeningAndOfTheEnd) {
  Peer peer({});
  Endpoint endpoint = make_endpoint({});
  peer.process().stop();  // so that the watcher is there first
  const Connection connection = endpoint.connect_async(peer.address(), peer.port(), kLimit);
  std::atomic<int> calls{0};
  std::atomic<ConnectionState> state{};
  connection.on_change([&] {
    state = connection.state();
    ++calls;
  });
  EXPECT_EQ(calls, 0);
  peer.process().signal(SIGCONT);
  EXPECT_TRUE(eventually([&] { return calls == 1; }));
  EXPECT_EQ(state, ConnectionState::kOpen);
  std::atomic<int> late{0};
  connection.on_change([&] { ++late; });
  peer.process().kill_now();
  EXPECT_TRUE(eventually([&] { return calls == 2; }));
  EXPECT_EQ(state, ConnectionState::kClosed);
  EXPECT_TRUE(eventually([&] { return late == 1; }));
  connection.on_change([&] { ++late; });
  EXPECT_EQ(late, 1) << "nothing is still to come";
}

TEST(Watcher, HearsThatNobodyListens) {
  const KeptPort kept;
  std::atomic<int> calls{0};  // outlives the endpoint, whose thread counts
  Endpoint endpoint = make_endpoint({});
  const Connection connection = endpoint.connect_async("127.0.0.1", kept.port(), kLimit);
  connection.on_change([&] { ++calls; });
  EXPECT_TRUE(is_error(connection.wait_open(kLimit), {ErrorCode::kUnavailable, ErrorCode::kSystem}));
  // It may have ended before the watcher came.
  EXPECT_LE(calls, 1);
  EXPECT_EQ(connection.state(), ConnectionState::kClosed);
}

TEST(DeathInHandshake, DialledPeerThatNeverAnswersIsGivenUp) {
  Peer peer({});
  peer.process().stop();
  Endpoint endpoint = make_endpoint({});
  const auto start = Clock::now();
  const Status failed =
      status_of(endpoint.connect(peer.address(), peer.port(), std::chrono::milliseconds(500)));
  EXPECT_TRUE(is_error(failed, {ErrorCode::kTimedOut, ErrorCode::kPeerGone}));
  EXPECT_LT(Clock::now() - start, std::chrono::milliseconds(500) + kMargin);
}

TEST(DeathInHandshake, DialledPeerIsKilled) {
  Peer peer({});
  peer.process().stop();
  Endpoint endpoint = make_endpoint({});
  OwnRegion own(endpoint, 100);
  const Connection connection = endpoint.connect_async(peer.address(), peer.port(), kLimit);
  const Transfer waiting = connection.recv(own.span(0, 100));
  EXPECT_TRUE(is_error(connection.wait_open(std::chrono::milliseconds(100)), {ErrorCode::kTimedOut}));
  peer.process().kill_now();
  // One that closes before it has said a word is dialled again, and then nobody listens.
  EXPECT_TRUE(is_error(connection.wait_open(kLimit),
                       {ErrorCode::kPeerGone, ErrorCode::kSystem, ErrorCode::kUnavailable}));
  EXPECT_TRUE(
      is_error(waiting.wait(kLimit), {ErrorCode::kPeerGone, ErrorCode::kSystem, ErrorCode::kUnavailable}));
}

TEST(DeathInHandshake, PeerLeavesInTheMiddleOfItsHello) {
  Listener listener;
  Endpoint endpoint = make_endpoint({});
  const Connection connection = endpoint.connect_async("127.0.0.1", listener.port(), kLimit);
  Socket stranger = listener.accept();
  EXPECT_FALSE(stranger.receive_some().empty()) << "the connector speaks first";
  stranger.send("\x05");
  stranger = Socket();
  EXPECT_TRUE(is_error(connection.wait_open(kLimit), {ErrorCode::kPeerGone, ErrorCode::kProtocol}));
}

TEST(DeathInHandshake, NobodyListens) {
  const KeptPort kept;
  Endpoint endpoint = make_endpoint({});
  const Status failed = status_of(endpoint.connect("127.0.0.1", kept.port(), kLimit));
  ASSERT_FALSE(failed);
  EXPECT_NE(failed.error().message.find(fmt::format("{}", kept.port())), std::string::npos)
      << failed.error().message;
}

TEST(DeathInHandshake, DiallersKilledAtAnyMomentLeaveNothingBehind) {
  Endpoint endpoint = make_endpoint({});
  const int rounds = scaled(30, 10);
  for (int round = 0; round < rounds; ++round) {
    Peer dialler({});
    // The moments are those after it dials, also where it takes long to come to that.
    EXPECT_TRUE(is_ok(status_of(
        dialler.call(fmt::format("connect_async {} {} 20000", endpoint.address(), endpoint.port())))));
    if (round % 3 == 0) {
      EXPECT_TRUE(is_ok(status_of(dialler.call("open 0 20000")))) << "some surely get as far as that";
    }
    const auto end = Clock::now() + std::chrono::microseconds(200 * round);
    while (Clock::now() < end) {
    }
    dialler.process().kill_now();
  }
  EXPECT_TRUE(eventually([&] { return endpoint.connections().empty(); }));
  Peer last({});
  EXPECT_TRUE(
      is_ok(status_of(last.call(fmt::format("connect {} {} 20000", endpoint.address(), endpoint.port())))));
}

}  // namespace
}  // namespace p2p::testing
