// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Every state and every event, and random runs, by times of the test's own.
#include "engine/channels/channel_states.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <vector>

namespace p2p::engine::channel_states_test {
namespace {

using namespace std::chrono_literals;
using S = Connectivity;
using E = ChannelEvent;
using P = PoolPhase;
using V = PoolEvent;
using Kind = ChannelStates::Kind;
using Do = ChannelStates::Do;
using Clock = ChannelStates::Clock;

constexpr std::array kStates{S::kAbsent,   S::kOffered, S::kConnecting, S::kReady,
                             S::kDraining, S::kBackoff, S::kShutdown};
constexpr std::array kEvents{E::kOffer, E::kConnect, E::kUp, E::kFail, E::kDrain, E::kClose};
constexpr std::array kPhases{P::kNegotiating, P::kStarting,    P::kServing, P::kIdle,
                             P::kWaking,      P::kInterrupted, P::kLeaving, P::kEnded};
constexpr std::array kPoolEvents{V::kAttach,     V::kPeerServes, V::kHurry, V::kBulk,  V::kBusy, V::kWanted,
                                 V::kPeerWanted, V::kIdle,       V::kHeard, V::kLeave, V::kEnd};

// As in docs/channels.md: a row for each state, a column for each event; kFail by what becomes of it.
TEST(ChannelStatesTest, EveryStateTakesEveryEvent) {
  struct Row {
    S offer, connect, up, retry, forget, never, drain, close;
  };
  constexpr std::array<Row, kStates.size()> kTable{{
      {S::kOffered, S::kConnecting, S::kAbsent, S::kAbsent, S::kAbsent, S::kAbsent, S::kAbsent, S::kAbsent},
      {S::kOffered, S::kConnecting, S::kOffered, S::kBackoff, S::kAbsent, S::kShutdown, S::kDraining,
       S::kAbsent},
      {S::kConnecting, S::kConnecting, S::kReady, S::kBackoff, S::kAbsent, S::kShutdown, S::kDraining,
       S::kAbsent},
      {S::kReady, S::kConnecting, S::kReady, S::kBackoff, S::kAbsent, S::kShutdown, S::kDraining, S::kAbsent},
      {S::kDraining, S::kConnecting, S::kDraining, S::kAbsent, S::kAbsent, S::kAbsent, S::kDraining,
       S::kAbsent},
      {S::kOffered, S::kConnecting, S::kBackoff, S::kBackoff, S::kBackoff, S::kBackoff, S::kAbsent,
       S::kAbsent},
      {S::kShutdown, S::kShutdown, S::kShutdown, S::kShutdown, S::kShutdown, S::kShutdown, S::kShutdown,
       S::kShutdown},
  }};
  for (std::size_t i = 0; i != kStates.size(); ++i) {
    SCOPED_TRACE(i);
    const S state = kStates.at(i);
    const Row& row = kTable.at(i);
    EXPECT_EQ(next_state(state, E::kOffer, {}), row.offer);
    EXPECT_EQ(next_state(state, E::kConnect, {}), row.connect);
    EXPECT_EQ(next_state(state, E::kUp, {}), row.up);
    EXPECT_EQ(next_state(state, E::kFail, AfterFailure::kRetry), row.retry);
    EXPECT_EQ(next_state(state, E::kFail, AfterFailure::kForget), row.forget);
    EXPECT_EQ(next_state(state, E::kFail, AfterFailure::kNever), row.never);
    EXPECT_EQ(next_state(state, E::kDrain, {}), row.drain);
    EXPECT_EQ(next_state(state, E::kClose, {}), row.close);
  }
}

// Those that are not listed stay.
TEST(ChannelStatesTest, EveryPhaseTakesEveryEvent) {
  struct Change {
    P from;
    V event;
    bool any_ready;
    P to;
  };
  std::vector<Change> changes{
      {P::kNegotiating, V::kAttach, false, P::kStarting},
      {P::kNegotiating, V::kAttach, true, P::kStarting},
      {P::kStarting, V::kHurry, true, P::kServing},
  };
  for (const bool ready : {false, true}) {
    for (const V event : {V::kWanted, V::kPeerWanted, V::kHeard}) {
      changes.push_back({P::kIdle, event, ready, P::kWaking});
    }
    for (const P phase : {P::kServing, P::kWaking, P::kInterrupted}) {
      changes.push_back({phase, V::kIdle, ready, P::kIdle});
    }
    for (const P phase : kPhases) {
      if (phase < P::kLeaving) changes.push_back({phase, V::kLeave, ready, P::kLeaving});
      if (phase < P::kEnded) changes.push_back({phase, V::kEnd, ready, P::kEnded});
    }
  }
  for (const P phase : kPhases) {
    for (const V event : kPoolEvents) {
      for (const bool ready : {false, true}) {
        SCOPED_TRACE(std::to_string(static_cast<int>(phase)) + " " + std::to_string(static_cast<int>(event)));
        const auto change = std::ranges::find_if(changes, [&](const Change& one) {
          return one.from == phase && one.event == event && one.any_ready == ready;
        });
        EXPECT_EQ(next_phase(phase, event, ready), change == changes.end() ? phase : change->to);
      }
    }
  }
}

ChannelStates::Rules rules(bool connector = true) {
  return {.connector = connector,
          .reopens = true,
          .closes_idle = true,
          .idle = 60s,
          .keepalive = 1s,
          .hung = 4s,
          .connect_timeout = 5s};
}

/// The channels of one transport, with what a pool would do for them, and a clock.
struct Driven {
  explicit Driven(const ChannelStates::Rules& by, std::vector<Kind> kinds = {Kind::kFirst}) : states(by) {
    for (const Kind kind : kinds) states.add(kind);
  }

  std::vector<ChannelStates::Action> reconcile(ChannelStates::Traffic traffic = {}) {
    return states.reconcile(now, traffic);
  }
  std::vector<ChannelStates::Action> wait(Clock::duration time, ChannelStates::Traffic traffic = {}) {
    now += time;
    return reconcile(traffic);
  }
  void on(std::size_t channel, E event) { states.on(channel, event, now); }
  void on(V event) { states.on(event, now); }

  void come_up(std::size_t channel) {
    on(channel, E::kConnect);
    on(channel, E::kUp);
  }

  /// Both sides serve with the first channels.
  void serve() {
    for (std::size_t i = 0; i != states.size(); ++i) {
      if (states.kind(i) == Kind::kFirst) on(i, E::kOffer), on(i, E::kConnect);
    }
    on(V::kAttach);
    for (std::size_t i = 0; i != states.size(); ++i) on(i, E::kUp);
    on(V::kPeerServes);
    reconcile();
    ASSERT_EQ(states.phase(), P::kServing);
  }

  ChannelStates states;
  Clock::time_point now{};
};

using Actions = std::vector<ChannelStates::Action>;
constexpr ChannelStates::Traffic kBusyFar{.unused_since = {}, .busy = true, .round_trip = 20ms};

TEST(ChannelStatesTest, TargetRisesFromTheFirstToAllThatAreDeferred) {
  Driven run(rules(), {Kind::kFirst, Kind::kDeferred, Kind::kDeferred, Kind::kDeferred});
  run.serve();
  EXPECT_EQ(run.states.target(), 1U);
  EXPECT_EQ(run.wait(9ms), Actions());
  EXPECT_EQ(run.wait(1ms), (Actions{{Do::kOpen, 1}})) << "as many as are up";
  EXPECT_EQ(run.wait(10ms), Actions()) << "one is on its way";
  run.come_up(1);
  run.reconcile();
  EXPECT_EQ(run.reconcile(), (Actions{{Do::kOpen, 2}, {Do::kOpen, 3}}));
  EXPECT_EQ(run.states.target(), 4U);
}

TEST(ChannelStatesTest, DeferredOnesAreOpenedAtOnceByABusyLaneOrALongPath) {
  for (const bool busy : {true, false}) {
    Driven run(rules(), {Kind::kFirst, Kind::kDeferred, Kind::kDeferred, Kind::kDeferred});
    run.serve();
    if (busy) run.on(V::kBusy);
    EXPECT_EQ((busy ? run.reconcile() : run.wait(10ms, kBusyFar)).size(), 3U);
  }
}

TEST(ChannelStatesTest, SurplusOnesAreOpenedWhileOthersAreBusyOverALongPath) {
  Driven run(rules(), {Kind::kFirst, Kind::kSurplus, Kind::kSurplus});
  run.serve();
  run.on(V::kBulk);
  EXPECT_EQ(run.wait(100ms, kBusyFar), Actions()) << "two looks in a row";
  EXPECT_EQ(run.wait(100ms, kBusyFar), (Actions{{Do::kCutSmall}, {Do::kOpen, 1}, {Do::kOpen, 2}}));
  EXPECT_EQ(run.states.expected(), 3U);

  // One that does not come up is absent again, and none is opened for 10 s.
  run.on(1, E::kConnect);
  EXPECT_EQ(run.wait(2s), (Actions{{Do::kAbort, 1}}));
  run.on(1, E::kFail);
  EXPECT_EQ(run.states.state(1), S::kAbsent);
  EXPECT_EQ(run.states.target(), 2U);
  run.come_up(2);
  for (auto waited = 0ms; waited < 9900ms; waited += 100ms) {
    const auto actions = run.wait(100ms, kBusyFar);
    EXPECT_EQ(std::ranges::count(actions, Do::kOpen, &ChannelStates::Action::what), 0);
  }
  EXPECT_EQ(run.wait(100ms, kBusyFar), (Actions{{Do::kCutSmall}, {Do::kOpen, 1}}));
}

TEST(ChannelStatesTest, NoSurplusOnesOverAShortPathOrWithLittleToDo) {
  Driven run(rules(), {Kind::kFirst, Kind::kSurplus});
  run.serve();
  run.on(V::kBulk);
  EXPECT_EQ(run.wait(100ms), (Actions{{Do::kWatch}}));
  run.on(V::kBulk);
  for (int i = 0; i != 100; ++i) {
    EXPECT_EQ(run.wait(100ms, {.unused_since = {}, .busy = true, .round_trip = 50us}), Actions());
  }
}

/// A path on which each stream is capped, or not, at 100 MB a second.
struct BusyPath {
  ChannelStates::Traffic after(Clock::duration time, std::size_t streams) {
    const double rate = 1e8 * (capped ? static_cast<double>(streams) : 1);
    moved += rate * std::chrono::duration<double>(time).count();
    return {.unused_since = {},
            .busy = busy,
            .round_trip = round_trip,
            .moved = static_cast<std::uint64_t>(moved),
            .path_bound = true,
            .fills_path = full};
  }

  Actions look(Driven& run) { return run.wait(100ms, after(100ms, run.states.ready())); }

  /// Lets time pass until something but waiting is to be done.
  Actions until_something(Driven& run) {
    for (int i = 0; i != 100; ++i) {
      auto actions = look(run);
      if (!actions.empty()) return actions;
    }
    return {};
  }

  bool capped = true;
  bool busy = true;
  bool full = false;
  std::chrono::microseconds round_trip{200};
  double moved = 0;
};

const std::vector<Kind> kOneAndThree{Kind::kFirst, Kind::kSurplus, Kind::kSurplus, Kind::kSurplus};

TEST(ChannelStatesTest, SurplusOnesStayOverAShortPathIfEachAddsItsShare) {
  Driven run(rules(), kOneAndThree);
  run.serve();
  run.on(V::kBulk);
  BusyPath path;
  EXPECT_EQ(path.until_something(run), (Actions{{Do::kOpen, 1}}));
  run.come_up(1);
  EXPECT_EQ(path.until_something(run), (Actions{{Do::kCutSmall}, {Do::kOpen, 2}, {Do::kOpen, 3}}));
  run.come_up(2), run.come_up(3);
  EXPECT_EQ(path.until_something(run), (Actions{{Do::kCutSmall}}));
  EXPECT_EQ(path.until_something(run), Actions()) << "all are open";
  EXPECT_EQ(run.states.ready(), 4U);
}

TEST(ChannelStatesTest, OneThatAddsNothingOverAShortPathIsGivenBack) {
  Driven run(rules(), kOneAndThree);
  run.serve();
  run.on(V::kBulk);
  BusyPath path{.capped = false};
  EXPECT_EQ(path.until_something(run), (Actions{{Do::kOpen, 1}}));
  run.come_up(1);
  EXPECT_EQ(path.until_something(run), (Actions{{Do::kGiveBack, 1}}));
  EXPECT_EQ(run.states.state(1), S::kDraining);
  EXPECT_EQ(run.states.target(), 1U);
  EXPECT_EQ(run.states.expected(), 1U);
  run.on(1, E::kFail);
  EXPECT_EQ(run.states.state(1), S::kAbsent) << "and is no loss";
  EXPECT_EQ(path.until_something(run), Actions()) << "for 10 s at least";
}

TEST(ChannelStatesTest, ATrialOverAShortPathEndsWithTheWork) {
  Driven run(rules(), kOneAndThree);
  run.serve();
  run.on(V::kBulk);
  BusyPath path;
  EXPECT_EQ(path.until_something(run), (Actions{{Do::kOpen, 1}}));
  run.come_up(1);
  path.busy = false;
  EXPECT_EQ(path.until_something(run), (Actions{{Do::kGiveBack, 1}, {Do::kWatch}}));
}

// What one has on its way fills the path; 24 that share it overrun it.
TEST(ChannelStatesTest, OnesThatAddNothingToALongPathThatIsFullAreGivenBack) {
  Driven run(rules(), kOneAndThree);
  run.serve();
  run.on(V::kBulk);
  BusyPath path{.capped = false, .full = true, .round_trip = 20ms};
  EXPECT_EQ(path.until_something(run), (Actions{{Do::kOpen, 1}})) << "a trial";
  run.come_up(1);
  EXPECT_EQ(path.until_something(run), (Actions{{Do::kGiveBack, 1}}));
  run.on(1, E::kFail);
  EXPECT_EQ(path.until_something(run), Actions());

  // Another path, or losses that one stream does not withstand.
  for (const bool full : {false, true, false}) {
    path.full = full;
    EXPECT_EQ(path.look(run), Actions()) << "two looks in a row";
  }
  EXPECT_EQ(path.look(run), (Actions{{Do::kCutSmall}, {Do::kOpen, 1}, {Do::kOpen, 2}, {Do::kOpen, 3}}));
}

// Those that a trial has opened stay where the path turns out to have room.
TEST(ChannelStatesTest, AllStayThatWereOpenedOverALongPathAfterATrialHadBegun) {
  Driven run(rules(), {Kind::kFirst, Kind::kSurplus, Kind::kSurplus});
  run.serve();
  run.on(V::kBulk);
  BusyPath path{.capped = false, .full = true, .round_trip = 20ms};
  ASSERT_EQ(path.until_something(run), (Actions{{Do::kOpen, 1}}));
  run.come_up(1);
  path.full = false;
  EXPECT_EQ(path.until_something(run), (Actions{{Do::kCutSmall}, {Do::kOpen, 2}}));
  run.come_up(2);
  path.full = true;
  path.busy = false;
  EXPECT_EQ(path.until_something(run), Actions());
  EXPECT_EQ(run.states.ready(), 3U);
}

// The acceptor's work, of which the connector sees what moves.
TEST(ChannelStatesTest, ThePeersWorkOverAShortPathCountsWhileItMoves) {
  Driven run(rules(), kOneAndThree);
  run.serve();
  BusyPath path{.busy = false};
  EXPECT_EQ(path.until_something(run), Actions());
  run.on(V::kPeerWanted);
  EXPECT_EQ(path.until_something(run), (Actions{{Do::kOpen, 1}}));
  run.on(1, E::kFail);
  run.on(V::kPeerWanted);
  const auto idle = path.after(0ms, 1);
  EXPECT_EQ(run.wait(1s, idle), (Actions{{Do::kWatch}}));
}

TEST(ChannelStatesTest, TheAcceptorAsksOverAShortPathWhileThePathIsTheBound) {
  Driven run(rules(false), kOneAndThree);
  run.serve();
  run.on(V::kBulk);
  BusyPath path;
  EXPECT_EQ(path.until_something(run), (Actions{{Do::kAskForMore}}));
  auto bound_by_threads = path.after(100ms, 1);
  bound_by_threads.path_bound = false;
  for (int i = 0; i != 100; ++i) EXPECT_EQ(run.wait(100ms, bound_by_threads), Actions());
}

TEST(ChannelStatesTest, TheAcceptorAsksForSurplusOnesLessAndLessOften) {
  Driven run(rules(false), {Kind::kFirst, Kind::kSurplus});
  run.serve();
  run.on(V::kBulk);
  run.wait(100ms, kBusyFar);
  for (const auto pause : {100ms, 100ms, 200ms, 400ms}) {
    EXPECT_EQ(run.wait(pause - 1ms, kBusyFar), Actions());
    EXPECT_EQ(run.wait(1ms, kBusyFar), (Actions{{Do::kCutSmall}, {Do::kAskForMore}}));
  }
  run.on(1, E::kConnect);
  EXPECT_EQ(run.wait(5s), (Actions{{Do::kAbort, 1}})) << "the connector has given it up";
}

TEST(ChannelStatesTest, WhatIsUnusedIsClosedAndOpenedByTheNextUse) {
  Driven run(rules(), {Kind::kFirst, Kind::kDeferred, Kind::kSurplus});
  run.serve();
  EXPECT_EQ(run.wait(60s, {.unused_since = run.now + 1s}), (Actions{{Do::kOpen, 1}}));
  run.come_up(1);
  run.wait(1s, {.unused_since = run.now - 59s});
  EXPECT_EQ(run.wait(60s, {.unused_since = run.now - 60s}), (Actions{{Do::kCloseIdle}}));
  run.on(V::kIdle);
  EXPECT_EQ(run.states.target(), 0U);
  EXPECT_EQ(run.states.open(), 0U);
  EXPECT_FALSE(run.states.next_deadline());
  EXPECT_EQ(run.wait(1h), Actions());
  run.on(V::kWanted);
  EXPECT_EQ(run.reconcile(), (Actions{{Do::kOpen, 0}})) << "the first alone";
  run.come_up(0);
  run.reconcile();
  EXPECT_EQ(run.states.phase(), P::kServing);
}

TEST(ChannelStatesTest, WakingHasAnEnd) {
  Driven run(rules());
  run.serve();
  run.on(V::kIdle);
  run.on(V::kWanted);
  run.reconcile();
  run.wait(5s);
  EXPECT_EQ(run.states.ending(), ChannelStates::Ending::kTimedOut);
  EXPECT_TRUE(run.states.ended());
}

TEST(ChannelStatesTest, ALostOneIsTriedAgainAfterPauses) {
  Driven run(rules(), {Kind::kFirst, Kind::kFirst});
  run.serve();
  for (const auto pause : {50ms, 100ms, 200ms}) {
    run.on(1, E::kFail);
    EXPECT_EQ(run.wait(pause - 1ms), Actions());
    EXPECT_EQ(run.wait(1ms), (Actions{{Do::kOpen, 1}}));
  }
  EXPECT_EQ(run.states.phase(), P::kServing);
}

// Twice for each of the two channels would be longer than the time that there is.
TEST(ChannelStatesTest, WhenAllAreLostAttemptsHaveAnEnd) {
  Driven run(rules(), {Kind::kFirst, Kind::kFirst});
  run.serve();
  for (const std::size_t channel : {0U, 1U}) run.on(channel, E::kFail);
  unsigned tried = 0;
  for (run.reconcile(); !run.states.ended(); run.now += 1ms) {
    for (const auto& action : run.reconcile()) {
      run.on(action.channel, E::kFail);
      ++tried;
    }
  }
  EXPECT_EQ(run.states.ending(), ChannelStates::Ending::kExhausted);
  EXPECT_GE(tried, 8U);
  EXPECT_LE(run.now.time_since_epoch(), 1300ms);
}

TEST(ChannelStatesTest, APeerThatAnswersNothingIsHung) {
  Driven run(rules());
  run.serve();
  run.on(0, E::kFail);
  EXPECT_EQ(run.wait(125ms), (Actions{{Do::kOpen, 0}}));
  EXPECT_EQ(run.states.phase(), P::kInterrupted);
  run.wait(4s);
  EXPECT_EQ(run.states.ending(), ChannelStates::Ending::kHung);
}

TEST(ChannelStatesTest, WhatCannotBeOpenedAgainIsNot) {
  auto by = rules();
  by.reopens = by.closes_idle = false;
  Driven run(by, {Kind::kFirst, Kind::kDeferred});
  run.serve();
  EXPECT_EQ(run.wait(10ms), (Actions{{Do::kOpen, 1}}));
  run.on(1, E::kFail);
  EXPECT_EQ(run.states.state(1), S::kShutdown);
  EXPECT_EQ(run.wait(1h), Actions());
  run.on(0, E::kFail);
  run.reconcile();
  EXPECT_EQ(run.states.ending(), ChannelStates::Ending::kFailed);
}

TEST(ChannelStatesTest, NothingIsOpenedBeforeThePeerServes) {
  Driven run(rules(), {Kind::kFirst, Kind::kFirst, Kind::kDeferred});
  for (const std::size_t channel : {0U, 1U}) run.on(channel, E::kOffer), run.on(channel, E::kConnect);
  run.on(V::kAttach);
  run.on(0, E::kUp);
  EXPECT_EQ(run.states.phase(), P::kStarting);
  run.wait(1s);
  EXPECT_EQ(run.states.phase(), P::kServing) << "one that is late holds up no other";
  run.on(1, E::kFail);
  for (int i = 0; i != 100; ++i) EXPECT_EQ(run.wait(100ms), Actions());
  run.on(V::kPeerServes);
  const auto actions = run.wait(1s);
  EXPECT_NE(std::ranges::find(actions, ChannelStates::Action{Do::kOpen, 1}), actions.end());
}

/// Random events, with what a pool and a peer may do, and what always holds.
class Random {
 public:
  explicit Random(unsigned seed) : draws_(seed), by_(made_rules()), run_(by_, made_kinds()), traffic_{} {}

  void go() {
    for (std::size_t i = 0; i != run_.states.size(); ++i) {
      if (run_.states.kind(i) == Kind::kFirst) run_.on(i, E::kOffer), run_.on(i, E::kConnect);
    }
    run_.on(V::kAttach);
    for (unsigned step = 0; step != 200 && !::testing::Test::HasFailure(); ++step) {
      draw_event();
      run_.now += Clock::duration(std::chrono::milliseconds(draw(4) == 0 ? draw(5000) : draw(50)));
      draw_traffic();
      perform(run_.reconcile(traffic_));
      if (run_.states.phase() == P::kEnded) run_.on(V::kEnd);
      check();
    }
  }

 private:
  unsigned draw(unsigned below) { return static_cast<unsigned>(draws_() % below); }

  ChannelStates::Rules made_rules() {
    auto by = rules(draw(2) == 0);
    by.reopens = draw(4) != 0;
    by.closes_idle = by.reopens && draw(4) != 0;
    return by;
  }
  std::vector<Kind> made_kinds() {
    std::vector<Kind> kinds(1 + draw(3), Kind::kFirst);
    for (unsigned i = draw(4); i != 0; --i) kinds.push_back(Kind::kDeferred);
    for (unsigned i = by_.closes_idle ? draw(4) : 0; i != 0; --i) kinds.push_back(Kind::kSurplus);
    return kinds;
  }
  void draw_traffic() {
    traffic_ = {
        .unused_since = {}, .busy = draw(2) == 0, .round_trip = std::chrono::microseconds(draw(2) * 5000)};
    moved_ += draw(2) == 0 ? 0 : draw(1U << 30);
    traffic_.moved = moved_;
    traffic_.path_bound = draw(4) != 0;
    traffic_.fills_path = draw(2) == 0;
    if (draw(2) == 0) traffic_.unused_since = run_.now - std::chrono::seconds(draw(100));
  }

  void draw_event() {
    if (draw(4) == 0) {
      const V event = kPoolEvents.at(draw(kPoolEvents.size()));
      if (event == V::kIdle && !by_.closes_idle) return;
      if ((event == V::kLeave || event == V::kEnd) && draw(10) != 0) return;
      return run_.on(event);
    }
    const std::size_t channel = draw(static_cast<unsigned>(run_.states.size()));
    const E event = kEvents.at(draw(4));
    // A connector offers by itself; its peer answers what was offered.
    if (event == E::kOffer && (by_.connector || run_.states.ended())) return;
    if (event == E::kConnect && by_.connector && run_.states.state(channel) != S::kOffered) return;
    if (event == E::kConnect && run_.states.ended()) return;
    if (event == E::kOffer || event == E::kConnect) run_.on(V::kHeard);
    run_.on(channel, event);
  }

  void perform(const Actions& actions) {
    const ChannelStates& states = run_.states;
    for (const auto& action : actions) {
      ASSERT_LT(action.channel, states.size());
      switch (action.what) {
        case Do::kOpen:
          EXPECT_TRUE(by_.connector);
          EXPECT_EQ(states.state(action.channel), S::kOffered);
          EXPECT_TRUE(states.phase() != P::kIdle && states.phase() != P::kEnded);
          if (draw(4) == 0) run_.on(action.channel, E::kFail);
          break;
        case Do::kAbort:
          EXPECT_EQ(states.state(action.channel), S::kConnecting);
          run_.on(action.channel, E::kFail);
          break;
        case Do::kCloseIdle:
          EXPECT_TRUE(by_.closes_idle);
          if (by_.connector && draw(2) == 0) run_.on(V::kIdle);
          break;
        case Do::kAskForMore: EXPECT_FALSE(by_.connector); break;
        case Do::kGiveBack:
          EXPECT_TRUE(by_.connector);
          EXPECT_EQ(states.state(action.channel), S::kDraining);
          if (draw(2) == 0) run_.on(action.channel, E::kFail);
          break;
        case Do::kCutSmall:
        case Do::kWatch: break;
      }
    }
  }

  void check() const {
    const ChannelStates& states = run_.states;
    EXPECT_LE(states.target(), states.size());
    EXPECT_LE(states.expected(), states.size());
    std::size_t ready = 0;
    for (std::size_t i = 0; i != states.size(); ++i) {
      ready += states.state(i) == S::kReady ? 1 : 0;
      EXPECT_EQ(states.state(i) == S::kBackoff && !states.deadline(i), false) << "no end of a pause";
      if (states.deadline(i)) {
        EXPECT_TRUE(states.state(i) == S::kBackoff || states.state(i) == S::kConnecting);
        EXPECT_TRUE(states.ended() || states.next_deadline() <= states.deadline(i));
      }
      if (states.state(i) == S::kBackoff) {
        EXPECT_TRUE(by_.connector && by_.reopens);
      }
      EXPECT_FALSE(states.state(i) == S::kShutdown && by_.reopens);
    }
    EXPECT_EQ(ready, states.ready());
    if (by_.connector && !states.ended()) {
      EXPECT_LE(states.open(), states.target());
    }
    if (states.target() == 0 && by_.connector && !states.ended()) {
      EXPECT_EQ(states.open(), 0U);
    }
    const bool limited = states.phase() == P::kWaking || states.phase() == P::kInterrupted;
    EXPECT_TRUE(!limited || states.next_deadline()) << "no end";
    if (states.phase() == P::kIdle) {
      EXPECT_EQ(ready, 0U);
    }
    if (states.phase() == P::kEnded && states.ending() != ChannelStates::Ending::kNone) {
      EXPECT_EQ(ready, 0U);
    }
  }

  std::mt19937 draws_;
  ChannelStates::Rules by_;
  Driven run_;
  ChannelStates::Traffic traffic_;
  std::uint64_t moved_ = 0;
};

// A failing one prints what repeats it.
TEST(ChannelStatesTest, RandomRunsKeepTheRules) {
  for (unsigned seed = 0; seed != 5000 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random(seed).go();
  }
}

}  // namespace
}  // namespace p2p::engine::channel_states_test
