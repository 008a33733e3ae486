// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "support/bounds.h"
#include "support/process.h"

namespace p2p::testing {

inline constexpr std::uint64_t kBytes = 4 << 20;

/// How many seeds a random test takes: more in the long form (docs/testing.md).
inline int seeds(int usual) {
  const char* const many = std::getenv("P2P_WEIGHTS_SEEDS");  // NOLINT(concurrency-mt-unsafe): no setenv here
  return many != nullptr ? std::atoi(many) : scaled(usual, usual / 2);
}

/// A process that publishes or subscribes (member_main.cc).
class WeightsMember {
 public:
  explicit WeightsMember(const std::vector<std::string>& words) : process_(spawn(words)) {
    std::istringstream answer(finish());
    std::string ok, address, port;
    answer >> ok >> address >> port;
    EXPECT_EQ(ok, "ok") << answer.str();
    place_ = address + ":" + port;
  }

  const std::string& place() const { return place_; }
  Process& process() { return process_; }
  void begin(const std::string& command) { EXPECT_TRUE(process_.write_line(command)); }
  std::string finish() { return process_.read_line(2 * kLimit).value_or("nothing"); }
  std::string call(const std::string& command) {
    begin(command);
    return finish();
  }

 private:
  static Process spawn(std::vector<std::string> words) {
    words.insert(words.begin(), WEIGHTS_MEMBER);
    return std::move(Process::spawn(words).value());
  }

  Process process_;
  std::string place_;
};

inline std::string text(std::uint64_t number) { return std::to_string(number); }

/// Members of one set of tensors. `memory`: member_main.cc.
struct Cast {
  std::uint64_t tensors = 1;
  std::uint64_t chunk_bytes = 64 << 10;

  WeightsMember publisher(std::uint64_t cut = 1, const std::string& memory = "host") const {
    return WeightsMember({"publish", "127.0.0.1," + memory, text(tensors), text(kBytes), text(cut)});
  }
  WeightsMember subscriber(std::uint64_t cut, const std::vector<std::string>& places,
                           const std::string& memory = "host") const {
    std::vector<std::string> words{"subscribe", "127.0.0.1," + memory, text(tensors), text(kBytes),
                                   text(cut),   text(chunk_bytes)};
    words.insert(words.end(), places.begin(), places.end());
    return WeightsMember(words);
  }
};

/// What a stage answered after "ok".
struct Staged {
  std::uint64_t bytes = 0, from_publisher = 0, wrong = 0, bridged = 0;
  std::uint64_t delta_bytes = 0, from_deltas = 0;
  std::string no_delta{};
};
inline Staged staged(const std::string& answer) {
  EXPECT_THAT(answer, ::testing::StartsWith("ok "));
  Staged row;
  std::istringstream words(answer.substr(std::min<std::size_t>(3, answer.size())));
  std::string end;
  words >> row.bytes >> row.from_publisher >> row.wrong >> row.bridged >> end >> row.delta_bytes >>
      row.from_deltas >> std::ws;
  std::getline(words, row.no_delta);
  return row;
}

/// All stage version 1. One of them is killed, which and when by seed, and the others get all.
inline void stage_while_one_is_killed(std::vector<WeightsMember>& subscribers, std::mt19937_64& dice) {
  for (WeightsMember& member : subscribers) member.begin("stage 1");
  const std::size_t victim = dice() % subscribers.size();
  std::this_thread::sleep_for(std::chrono::microseconds(dice() % 150000));
  subscribers[victim].process().kill_now();
  for (std::size_t at = 0; at < subscribers.size(); ++at) {
    if (at != victim) staged(subscribers[at].finish());
  }
}

/// One that holds version 1 and knows what 2 is, one of `every` of whose elements differs.
inline WeightsMember holder(const Cast& cast, std::uint64_t cut, const std::string& place,
                            std::uint64_t every = 100, const std::string& memory = "host") {
  auto member = cast.subscriber(cut, {place}, memory);
  staged(member.call("stage 1"));
  EXPECT_EQ(member.call("commit"), "ok 1");
  EXPECT_EQ(member.call("descend 2 1 " + text(every)), "ok");
  return member;
}

/// Versions 2 and 3 as deltas, each of the one before, to three members that hold version 1 and know what 2
/// is.
inline void publish_deltas(WeightsMember& publisher, std::vector<WeightsMember>& subscribers) {
  for (WeightsMember& member : subscribers) EXPECT_EQ(member.call("descend 3 2 60"), "ok");
  for (const char* const publish : {"publish 2 1 500", "publish 3 2 60"}) {
    ASSERT_THAT(publisher.call(publish), ::testing::StartsWith("ok "));
    const std::string version(1, publish[8]);
    const char* const how[] = {"again ", "beside ", "again "};
    for (std::size_t at = 0; at < 3; ++at) subscribers[at].begin(how[at] + version);
    for (WeightsMember& member : subscribers) {
      const Staged row = staged(member.finish());
      EXPECT_EQ(row.from_deltas, row.bytes) << row.no_delta;
      EXPECT_LT(row.delta_bytes, row.bytes / 8);
      EXPECT_EQ(row.wrong, 0);
      EXPECT_EQ(member.call("commit"), "ok " + version);
    }
  }
}

/// Version 2 as a delta to one that holds version 1, a byte of which has changed there: that chunk comes
/// whole.
inline void publish_delta_on_spoilt_base(const Cast& cast, WeightsMember& publisher,
                                         WeightsMember& subscriber) {
  ASSERT_EQ(subscriber.call("spoil"), "ok");
  ASSERT_THAT(publisher.call("publish 2 1 100"), ::testing::StartsWith("ok "));
  const Staged row = staged(subscriber.call("again 2"));
  EXPECT_EQ(row.wrong, 1);
  EXPECT_EQ(row.from_deltas, row.bytes - cast.chunk_bytes);
  EXPECT_THAT(row.no_delta, ::testing::HasSubstr("that of chunk 0"));
}

}  // namespace p2p::testing
