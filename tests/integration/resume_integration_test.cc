// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// The control connection is reset on the way, between two processes that live.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <random>
#include <thread>
#include <vector>

#include "support/eventually.h"
#include "support/hex.h"
#include "support/middlebox.h"
#include "support/peer.h"
#include "support/transports.h"

namespace p2p::testing::resume {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kSize = 512 * kKiB;
constexpr std::size_t kPiece = 64 * kKiB;
constexpr std::initializer_list<ErrorCode> kGone{ErrorCode::kPeerGone};

/// An endpoint here that has dialled one in a peer process by way of a middlebox.
struct Joined {
  explicit Joined(const EndpointPlan& plan)
      : peer(plan),
        middlebox(peer.port()),
        endpoint(make_endpoint(plan)),
        connection(endpoint.connect("127.0.0.1", middlebox.port(), kLimit).value()),
        at_peer(peer.accept()) {}

  Peer peer;
  Middlebox middlebox;
  Endpoint endpoint;
  Connection connection;
  std::uint64_t at_peer;
};

class ResumeTest : public OverTransport {
 protected:
  EndpointPlan plan() const {
    EndpointPlan plan = plan_over(GetParam());
    plan.workers = kSharingWorkers;
    plan.keepalive = 20s;  // how loaded the machine is decides nothing
    return plan;
  }
};
P2P_OVER_TRANSPORTS_AND_TLS(ResumeTest);

/// Resets the sessions of a middlebox, again and again; or all its connections, which leaves no path at all.
class Trouble {
 public:
  using What = Middlebox::What;
  Trouble(Middlebox& middlebox, unsigned seed, What what)
      : making_(std::async(std::launch::async, [this, &middlebox, seed, what] {
          std::mt19937 random(seed);
          // Streams have to be dialled behind the session, and a sanitizer makes that slow.
          const auto most = static_cast<unsigned>(what == What::kAll ? scaled(500'000, 1'500'000) : 50'000);
          while (!over_) {
            count_ += middlebox.reset(what);
            std::this_thread::sleep_for(std::chrono::microseconds(random() % most));  // the fault itself
          }
        })) {}
  ~Trouble() {
    over_ = true;
    making_.wait();
  }
  int count() const { return count_; }

 private:
  std::atomic<bool> over_{false};
  std::atomic<int> count_{0};
  std::future<void> making_;
};

/// All that one side can do to the other, once.
void do_everything(Joined& joined, std::uint64_t seed) {
  auto& [peer, middlebox, endpoint, connection, at_peer] = joined;
  OwnRegion own(endpoint, 2 * kSize);
  const PeerRegion theirs = peer.region(2 * kSize);
  const auto id = connection.import_region(theirs.descriptor);
  ASSERT_TRUE(is_ok(status_of(id)));
  fill(own.part(0, kSize), seed);
  std::vector<Transfer> transfers;
  std::vector<std::uint64_t> theirs_to_wait_for;
  const auto at = [&](std::size_t offset) { return theirs.descriptor.address + offset; };
  for (std::size_t offset = 0; offset != kSize; offset += kPiece) {
    transfers.push_back(connection.write(own.span(offset, kPiece), {*id, at(offset), kPiece}));
    transfers.push_back(connection.notify(fmt::format("{} {}", seed, offset)));
  }
  // Eager, and one that is written.
  for (const std::size_t size : {100 * std::size_t{1}, 300 * kKiB}) {
    theirs_to_wait_for.push_back(
        peer.number(fmt::format("recv {} {} {} {}", at_peer, theirs.index, kSize, size)));
    const Transfer send = connection.send(own.span(0, size));
    EXPECT_TRUE(is_ok(send.wait(kLimit)));
    EXPECT_TRUE(is_ok(peer.wait(theirs_to_wait_for.back())));
    EXPECT_TRUE(is_ok(status_of(peer.call(fmt::format("check {} {} 100 {}", theirs.index, kSize, seed)))));
  }
  for (const Transfer& transfer : transfers) EXPECT_TRUE(is_ok(transfer.wait(kLimit)));
  EXPECT_TRUE(is_ok(status_of(peer.call(fmt::format("check {} 0 {} {}", theirs.index, kSize, seed)))));
  EXPECT_TRUE(is_ok(connection.read(own.span(kSize, kSize), {*id, at(0), kSize}).wait(kLimit)));
  EXPECT_FALSE(difference(own.part(kSize, kSize), seed));
  for (std::size_t offset = 0; offset != kSize; offset += kPiece) {
    const auto note =
        peer.call(fmt::format("notified {} {}", at_peer, std::chrono::milliseconds(kLimit).count()));
    ASSERT_TRUE(is_ok(status_of(note)));
    EXPECT_TRUE(note->ends_with(fmt::format(" {} {}", seed, offset))) << *note;
  }
  EXPECT_TRUE(is_ok(own.region.release(kLimit)));
}

/// All of it again and again beside resets, after which both sides are still connected.
void do_everything_beside(Joined& joined, Trouble::What what, unsigned rounds) {
  int resets = 0;
  for (unsigned seed = 1; seed <= rounds; ++seed) {
    SCOPED_TRACE(seed);
    const Trouble trouble(joined.middlebox, seed, what);
    do_everything(joined, seed);
    resets += trouble.count();
    if (::testing::Test::HasFailure()) break;
  }
  EXPECT_GT(resets, 0);
  EXPECT_TRUE(is_ok(joined.connection.status()));
  // On a slow machine no attempt may have come through beside the resets: most goes on without a session.
  EXPECT_TRUE(eventually([&] { return joined.connection.stats().session_resumes != 0; }));
  const std::string history = joined.connection.routes().front().history;
  EXPECT_NE(history.find("session lost "), std::string::npos) << history;
  EXPECT_NE(history.find("; back "), std::string::npos) << history;
  EXPECT_TRUE(is_ok(status_of(joined.peer.call(fmt::format("status {}", joined.at_peer)))));
  EXPECT_TRUE(joined.connection.take_notifications().empty());
  EXPECT_FALSE(joined.peer.call(fmt::format("notified {} 0", joined.at_peer))) << "one came twice";
}

TEST_P(ResumeTest, ResetsOfTheSessionHarmNothing) {
  Joined joined(plan());
  do_everything_beside(joined, Trouble::What::kSessions, scaled(20, 8));
}

TEST_P(ResumeTest, ResetsOfAllConnectionsAtOnceHarmNothing) {
  Joined joined(plan());
  do_everything_beside(joined, Trouble::What::kAll, scaled(12, 4));
}

TEST_P(ResumeTest, WhatStartsWithoutASessionGoesOnWithOne) {
  Joined joined(plan());
  joined.middlebox.hold(true);
  ASSERT_GE(joined.middlebox.reset(), 1);
  OwnRegion own(joined.endpoint, kSize);
  const PeerRegion theirs = joined.peer.region(kSize);
  fill(own.pages.bytes(), 5);
  const auto id = joined.connection.import_region(theirs.descriptor);
  ASSERT_TRUE(is_ok(status_of(id)));
  const Transfer write = joined.connection.write(own.span(0, kSize), {*id, theirs.descriptor.address, kSize});
  const Transfer note = joined.connection.notify("meanwhile");
  joined.middlebox.hold(false);
  EXPECT_TRUE(is_ok(write.wait(kLimit)));
  EXPECT_TRUE(is_ok(note.wait(kLimit)));
  EXPECT_TRUE(is_ok(status_of(joined.peer.call(fmt::format("check {} 0 {} 5", theirs.index, kSize)))));
}

/// The session is lost, and cannot come back yet, when its peer dies.
TEST_P(ResumeTest, APeerThatDiesMeanwhileIsKnownAtOnce) {
  Joined joined(plan());
  OwnRegion own(joined.endpoint, 100);
  const Transfer receive = joined.connection.recv(own.span(0, 100));
  joined.middlebox.hold(true);
  ASSERT_GE(joined.middlebox.reset(), 1);
  joined.peer.process().kill_now();
  EXPECT_TRUE(is_error(receive.wait(kWideMargin), kGone));
  EXPECT_TRUE(is_error(joined.connection.status(), kGone));
}

TEST_P(ResumeTest, APeerThatDialledAndDiesMeanwhileIsKnownAtOnce) {
  Endpoint endpoint = make_endpoint(plan());
  Middlebox middlebox(endpoint.port());
  Peer peer(plan());
  peer.begin(fmt::format("connect 127.0.0.1 {} 20000", middlebox.port()));
  const auto connection = endpoint.accept(kLimit);
  ASSERT_TRUE(is_ok(status_of(connection)));
  ASSERT_TRUE(is_ok(status_of(peer.finish())));
  OwnRegion own(endpoint, 100);
  const Transfer receive = connection->recv(own.span(0, 100));
  middlebox.hold(true);
  ASSERT_GE(middlebox.reset(), 1);
  peer.process().kill_now();
  EXPECT_TRUE(is_error(receive.wait(kWideMargin), kGone));
}

// It answers late, and its machine for it meanwhile.
TEST_P(ResumeTest, APeerThatIsStoppedMeanwhileGoesOn) {
  EndpointPlan impatient = plan();
  impatient.keepalive = 4s;
  Joined joined(impatient);
  OwnRegion own(joined.endpoint, 100);
  joined.peer.process().stop();
  ASSERT_GE(joined.middlebox.reset(), 1);
  const Transfer note = joined.connection.notify("to one who sleeps");
  std::this_thread::sleep_for(9s);  // the fault itself
  EXPECT_TRUE(is_ok(joined.connection.status()));
  joined.peer.process().go_on();
  EXPECT_TRUE(is_ok(note.wait(kLimit)));
  EXPECT_TRUE(is_ok(status_of(joined.peer.call(fmt::format("notified {} 20000", joined.at_peer)))));
}

// Of one that dialled nothing is heard meanwhile, whichever transport there is.
TEST_P(ResumeTest, APeerThatDialledAndIsStoppedMeanwhileGoesOn) {
  EndpointPlan impatient = plan();
  impatient.keepalive = 2s;
  Endpoint endpoint = make_endpoint(impatient);
  Middlebox middlebox(endpoint.port());
  Peer peer(impatient);
  peer.begin(fmt::format("connect 127.0.0.1 {} 20000", middlebox.port()));
  auto connection = endpoint.accept(kLimit);
  ASSERT_TRUE(is_ok(status_of(connection)));
  ASSERT_TRUE(is_ok(status_of(peer.finish())));
  peer.process().stop();
  ASSERT_GE(middlebox.reset(), 1);
  const Transfer note = connection->notify("to one who sleeps");
  std::this_thread::sleep_for(5s);  // the fault itself
  EXPECT_TRUE(is_ok(connection->status()));
  peer.process().go_on();
  EXPECT_TRUE(is_ok(note.wait(kLimit)));
}

}  // namespace
}  // namespace p2p::testing::resume
