// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// When each of two channels learns that the other copies nothing any more: always, and never too soon.
#include "transport/cuda_ipc/twin_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "drivers/socket/local_socket.h"
#include "support/forbid.h"
#include "support/process.h"
#include "transport/cuda_ipc/memory/chunk_protocol.h"

namespace p2p::cuda_ipc {
namespace {

using p2p::testing::Process;
using p2p::testing::ProcessEnd;
using ::testing::HasSubstr;
using Meeting = TwinLink::Meeting;

class NoLink : public ControlLink {
 public:
  void send(std::span<const std::byte> /*message*/) override {}
};

ChannelSetup setup_of(Role role) {
  static NoLink control;
  ChannelSetup setup{.role = role, .control = &control};
  setup.secret.fill(std::byte{7});
  return setup;
}

TwinLink open(Role role) { return TwinLink::open(setup_of(role)).value(); }

ProcessId here() { return this_process().value(); }

Result<Meeting> connect(TwinLink& connector, const TwinLink& acceptor) {
  return connector.connect(here(), here(), acceptor.address());
}

Result<Meeting> await(TwinLink& acceptor, const TwinLink& connector) {
  return acceptor.connect(here(), here(), connector.address());
}

/// Connects under a name that no other test of this machine takes meanwhile.
Result<UniqueFd> stranger_to(const TwinLink& acceptor) {
  return socket::connect_locally(name_of(acceptor.address()->listener),
                                 "p2p-twin-link-test-" + std::to_string(::getpid()));
}

bool is_over(const PeerEnd& end) {
  pollfd told{.fd = end.fd(), .events = POLLIN, .revents = 0};
  const bool readable = ::poll(&told, 1, 0) == 1;
  EXPECT_EQ(end.over(), readable);
  return end.over();
}

struct Pair {
  TwinLink acceptor = open(Role::kAcceptor);
  TwinLink connector = open(Role::kConnector);

  Pair() {
    EXPECT_EQ(await(acceptor, connector), Meeting::kAwaited);
    EXPECT_EQ(connect(connector, acceptor), Meeting::kMet);
  }
};

TEST(TwinLinkTest, EitherWaitsForTheOther) {
  for (const bool told : {false, true}) {
    for (const bool acceptor_first : {false, true}) {
      SCOPED_TRACE(::testing::Message() << told << acceptor_first);
      Pair pair;
      if (told) static_cast<void>(pair.acceptor.met(true));
      TwinLink& first = acceptor_first ? pair.acceptor : pair.connector;
      TwinLink& second = acceptor_first ? pair.connector : pair.acceptor;
      const auto end = first.leave(true);
      ASSERT_TRUE(end);
      EXPECT_FALSE(is_over(*end));
      EXPECT_FALSE(second.leave(true)) << "the first one copies nothing any more";
      EXPECT_TRUE(is_over(*end));
    }
  }
}

TEST(TwinLinkTest, TwinsMeetInAFolder) {
  std::string folder = ::testing::TempDir() + "twins.XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const socket::Place place = socket::Place::at(folder).value();
  TwinLink acceptor = TwinLink::open(setup_of(Role::kAcceptor), place).value();
  TwinLink connector = TwinLink::open(setup_of(Role::kConnector), place).value();
  TwinLink elsewhere = open(Role::kConnector);
  EXPECT_EQ(connect(elsewhere, acceptor), Meeting::kNone);
  EXPECT_EQ(await(acceptor, connector), Meeting::kAwaited);
  EXPECT_EQ(connect(connector, acceptor), Meeting::kMet);
  EXPECT_TRUE(acceptor.met(true));
  const auto end = connector.leave(true);
  ASSERT_TRUE(end);
  EXPECT_FALSE(is_over(*end));
  EXPECT_FALSE(acceptor.leave(true));
  EXPECT_TRUE(is_over(*end));
  EXPECT_EQ(::rmdir(folder.c_str()), 0) << "nothing is left";
}

TEST(TwinLinkTest, ATwinThatIsDestroyedIsThrough) {
  Pair pair;
  const auto end = pair.acceptor.leave(true);
  ASSERT_TRUE(end);
  pair.connector = TwinLink();
  EXPECT_TRUE(is_over(*end));
}

TEST(TwinLinkTest, WhoComesAfterTheAcceptorHasLeftIsRefused) {
  TwinLink acceptor = open(Role::kAcceptor);
  TwinLink connector = open(Role::kConnector);
  EXPECT_FALSE(acceptor.leave(true));
  const auto refused = connect(connector, acceptor);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kPeerGone);
  EXPECT_FALSE(connector.leave(true));
}

void pause_for(int calls) {
  for (int i = 0; i < calls; ++i) static_cast<void>(::getppid());
}

// Either the connector is refused, or the acceptor waits for it. Who is first waits longer in the next round,
// and ever longer as long as it is, so that either happens however slow the machine is.
TEST(TwinLinkTest, NobodyIsMissedWhoConnectsWhileTheAcceptorLeaves) {
  constexpr int kRounds = 500;
  constexpr int kLeastStep = 50;
  constexpr int kMostStep = 50'000;
  int met = 0;
  int refused = 0;
  int head_start = 0;  // of the connector
  int step = kLeastStep;
  for (int round = 0; round < kRounds; ++round) {
    TwinLink acceptor = open(Role::kAcceptor);
    TwinLink connector = open(Role::kConnector);
    std::unique_ptr<PeerEnd> end;
    std::barrier together(2);
    std::thread leaving([&] {
      together.arrive_and_wait();
      pause_for(head_start);
      end = acceptor.leave(true);
    });
    const TwinAddress there = *acceptor.address();
    together.arrive_and_wait();
    pause_for(-head_start);
    const auto meeting = connector.connect(here(), here(), there);
    leaving.join();
    ASSERT_EQ(meeting.has_value(), end != nullptr) << round;
    ++(meeting ? met : refused);
    const bool again = meeting ? step < 0 : step > 0;
    const int size = again ? std::min(2 * std::abs(step), kMostStep) : kLeastStep;
    step = meeting ? -size : size;
    head_start += step;
    if (!end) continue;
    ASSERT_FALSE(is_over(*end)) << round;
    connector.leave(true);
    ASSERT_TRUE(is_over(*end)) << round;
  }
  EXPECT_GT(met, 0);
  EXPECT_GT(refused, 0);
}

TEST(TwinLinkTest, ACopyThatDoesNotEndHoldsTheTwinUntilTheProcessEnds) {
  Pair pair;
  ASSERT_TRUE(pair.acceptor.met(true));
  auto mine = pair.connector.leave(false);
  ASSERT_TRUE(mine);
  mine.reset();
  const auto end = pair.acceptor.leave(true);
  ASSERT_TRUE(end);
  EXPECT_FALSE(is_over(*end));
}

/// A child that does nothing but to hold what this process has open, as one that was forked for other
/// reasons.
class Holder {
 public:
  // By the system's call, so that no handler of fork() closes what it is to hold.
  Holder() : child_(static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0))) {
    if (child_ != 0) return;
    for (;;) ::pause();
  }
  ~Holder() {
    ::kill(child_, SIGKILL);
    EXPECT_EQ(::waitpid(child_, nullptr, 0), child_);
  }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;

 private:
  const pid_t child_;
};

TEST(TwinLinkTest, ChildrenThatHoldTheSocketsDoNotHoldTheTwin) {
  for (const bool acceptor_first : {false, true}) {
    TwinLink acceptor = open(Role::kAcceptor);
    TwinLink connector = open(Role::kConnector);
    const Holder of_listener;
    ASSERT_EQ(connect(connector, acceptor), Meeting::kMet);
    const Holder of_both;
    TwinLink& first = acceptor_first ? acceptor : connector;
    TwinLink& second = acceptor_first ? connector : acceptor;
    const auto end = first.leave(true);
    ASSERT_TRUE(end);
    EXPECT_FALSE(is_over(*end));
    EXPECT_FALSE(second.leave(true));
    EXPECT_TRUE(is_over(*end));
  }
}

TEST(TwinLinkTest, AKilledProcessIsThrough) {
  TwinLink acceptor = open(Role::kAcceptor);
  const ProcessId parent = here();
  auto child = Process::forked([&](const Process::Say& say) {
    TwinLink connector = open(Role::kConnector);
    say(connector.connect(here(), parent, acceptor.address()) == Meeting::kMet ? "met" : "not");
    return ::pause();
  });
  ASSERT_TRUE(child);
  EXPECT_EQ(child->read_line(p2p::testing::kLimit).value_or("nothing"), "met");
  const auto end = acceptor.leave(true);
  const bool over_before = !end || is_over(*end);
  child->kill_now();
  EXPECT_FALSE(over_before);
  EXPECT_TRUE(!end || is_over(*end));
}

TEST(TwinLinkTest, StrangersAreNotTakenForTheTwin) {
  TwinLink acceptor = open(Role::kAcceptor);
  TwinLink connector = open(Role::kConnector);
  const auto before = stranger_to(acceptor);
  ASSERT_TRUE(before);
  ASSERT_EQ(connect(connector, acceptor), Meeting::kMet);
  const auto behind = socket::connect_locally(name_of(acceptor.address()->listener));
  ASSERT_TRUE(behind);
  ASSERT_TRUE(acceptor.met(true));
  const auto end = acceptor.leave(true);
  ASSERT_TRUE(end);
  EXPECT_FALSE(is_over(*end));
  connector.leave(true);
  EXPECT_TRUE(is_over(*end));
}

TEST(TwinLinkTest, APeerThatSaysItHasConnectedMustBeThere) {
  TwinLink acceptor = open(Role::kAcceptor);
  const auto stranger = stranger_to(acceptor);
  ASSERT_TRUE(stranger) << stranger.error().message;
  const Status met = acceptor.met(true);
  ASSERT_FALSE(met);
  EXPECT_EQ(met.error().code, ErrorCode::kProtocol);
}

// The name can be taken by anybody once the acceptor has left.
TEST(TwinLinkTest, AnotherProcessInItsPlaceIsRefused) {
  const TwinLink acceptor = open(Role::kAcceptor);
  TwinLink connector = open(Role::kConnector);
  ProcessId theirs = here();
  ++theirs.pid;
  const auto refused = connector.connect(here(), theirs, acceptor.address());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kPeerGone);
  EXPECT_THAT(refused.error().message, HasSubstr("in place of"));
}

TEST(TwinLinkTest, ThereIsNoneBetweenNetworkNamespacesOrToAPeerWithout) {
  for (const bool connects : {false, true}) {
    for (const bool has_one : {false, true}) {
      TwinLink acceptor = open(Role::kAcceptor);
      TwinLink connector = open(Role::kConnector);
      auto told = connects ? acceptor.address() : connector.address();
      ++told->place;
      if (!has_one) told.reset();
      TwinLink& mine = connects ? connector : acceptor;
      EXPECT_EQ(mine.connect(here(), here(), told), Meeting::kNone);
      EXPECT_FALSE(mine.leave(true));
    }
  }
}

TEST(TwinLinkTest, WhereTheSystemForbidsItBothDoWithout) {
  TwinLink acceptor = open(Role::kAcceptor);
  const ProcessEnd end = p2p::testing::in_child([&] {
    if (!p2p::testing::forbid(SYS_connect, EACCES)) return 2;
    TwinLink connector = open(Role::kConnector);
    return connect(connector, acceptor) == Meeting::kMissed && !connector.leave(true) ? 0 : 1;
  });
  if (end.code == 2) GTEST_SKIP() << "no filter can be set here";
  EXPECT_EQ(end, ProcessEnd{.code = 0});
  EXPECT_TRUE(acceptor.met(false));
  EXPECT_FALSE(acceptor.leave(true));
}

}  // namespace
}  // namespace p2p::cuda_ipc
