// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// The table of docs/session.md, cell by cell, and random lives. The clock is a number.
#include "engine/session/session_states.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace p2p::engine {
namespace {

using namespace std::chrono_literals;
using State = SessionState;
using Event = SessionEvent;

constexpr SessionStates::Clock::time_point kStart{1h};
constexpr SessionStates::Limits kLimits{
    .handshake = kStart + 10s, .suspended = 33s, .draining = 3s, .lingering = 500ms};

State state(int number) { return static_cast<State>(number); }
Event event(int number) { return static_cast<Event>(number); }
Error because(const std::string& text) { return {ErrorCode::kPeerGone, text}; }

/// A session that has got so far in the shortest way.
SessionStates life(State wanted) {
  SessionStates states(kLimits);
  const std::map<State, std::vector<Event>> ways{{State::kConnecting, {}},
                                                 {State::kLive, {Event::kOpened}},
                                                 {State::kSuspended, {Event::kOpened, Event::kBroke}},
                                                 {State::kResuming, {Event::kOpened, Event::kProven}},
                                                 {State::kDraining, {Event::kOpened, Event::kClosed}},
                                                 {State::kEnded, {Event::kFailed}}};
  for (const Event step : ways.at(wanted)) EXPECT_TRUE(states.on(step, kStart, because("first")));
  return states;
}

/// The rows of the page's table, without its frame: the first cell, then what each event leads to.
std::map<std::string, std::vector<std::string>> rows() {
  std::ifstream page(P2P_SESSION_PAGE);
  std::map<std::string, std::vector<std::string>> found;
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with("| ") || line.find("---") != std::string::npos) continue;
    std::istringstream cells(line.substr(1));
    std::vector<std::string> words;
    for (std::string cell; std::getline(cells, cell, '|');) {
      std::istringstream word(cell);
      std::string first;
      word >> first;
      words.push_back(first);
    }
    if (words.size() == 1 + kSessionEvents) found[words[0]] = {words.begin() + 1, words.end()};
  }
  return found;
}

TEST(SessionStates, LeadWhereThePageSays) {
  const auto page = rows();
  for (int from = 0; from != kSessionStates; ++from) {
    const std::string name(to_string(state(from)));
    ASSERT_TRUE(page.contains(name)) << name;
    for (int what = 0; what != kSessionEvents; ++what) {
      SCOPED_TRACE(fmt::format("{}, event {}", name, what));
      SessionStates states = life(state(from));
      ASSERT_EQ(states.state(), state(from));
      const std::string& cell = page.at(name)[static_cast<std::size_t>(what)];
      const std::string expected = cell == "-" ? name : cell;
      EXPECT_EQ(to_string(states.next(event(what))), expected);
      EXPECT_EQ(states.on(event(what), kStart + 1s, because("next")), cell != "-");
      EXPECT_EQ(to_string(states.state()), expected);
    }
  }
}

TEST(SessionStates, HaveLimitsWhereSomebodyIsWaitedFor) {
  EXPECT_EQ(life(State::kConnecting).limit(), kLimits.handshake);
  EXPECT_EQ(life(State::kLive).limit(), std::nullopt);
  EXPECT_EQ(life(State::kSuspended).limit(), kStart + 33s);
  EXPECT_EQ(life(State::kResuming).limit(), std::nullopt);
  EXPECT_EQ(life(State::kEnded).limit(), std::nullopt);
  SessionStates draining = life(State::kDraining);
  EXPECT_EQ(draining.limit(), kStart + 3s);
  EXPECT_TRUE(draining.on(Event::kAllSent, kStart + 1s));
  EXPECT_EQ(draining.limit(), kStart + 1500ms);
}

TEST(SessionStates, TheFirstReasonOfACloseStays) {
  SessionStates states = life(State::kDraining);
  EXPECT_TRUE(states.on(Event::kFailed, kStart, because("later")));
  EXPECT_EQ(states.why().message, "first");
  SessionStates suspended = life(State::kSuspended);
  EXPECT_EQ(suspended.why().message, "first");
  EXPECT_TRUE(suspended.on(Event::kFailed, kStart, because("later")));
  EXPECT_EQ(suspended.why().message, "later");
}

// Whatever happens: an end is for good, and where somebody is waited for there is a limit, which ends it.
TEST(SessionStates, RandomLivesEndOnce) {
  for (unsigned seed = 0; seed != 2000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    SessionStates states(kLimits);
    auto now = kStart;
    int ends = 0;
    for (int step = 0; step != 60; ++step) {
      now += std::chrono::milliseconds(random() % 1000);
      const State before = states.state();
      const bool overdue = states.limit() && now >= *states.limit();
      const Event next = overdue ? Event::kFailed : event(static_cast<int>(random() % (kSessionEvents - 1)));
      const bool changed = states.on(next, now, because("random"));
      ends += changed && states.is(State::kEnded) ? 1 : 0;
      ASSERT_TRUE(before != State::kEnded || !changed);
      ASSERT_TRUE(!overdue || states.is(State::kEnded));
      const bool waits =
          states.is(State::kConnecting) || states.is(State::kSuspended) || states.is(State::kDraining);
      ASSERT_EQ(states.limit().has_value(), waits);
      ASSERT_TRUE(!waits || states.is(State::kConnecting) || states.why().message == "random");
      ASSERT_TRUE(states.state() == before || states.since() == now);
    }
    EXPECT_LE(ends, 1);
    EXPECT_EQ(ends == 1, states.is(State::kEnded));
  }
}

}  // namespace
}  // namespace p2p::engine
