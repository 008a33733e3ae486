// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <array>
#include <stdexcept>

#include "runs.h"

namespace p2p::chaos {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr std::size_t kConnections = 2;

/// One case after the other, between the same two workers.
class Cases {
 public:
  explicit Cases(World& world) : world_(world), dice_(world.dice()) { world_.open(kConnections); }

  void run_one() {
    for (std::uint64_t i = dice_.between(0, 2); i != 0; --i) world_.spoil();
    start_some({.bad_one_in = 2});
    make_trouble();
    world_.settle();
    world_.expect_channels_kept();
    world_.expect_children_right(false);
    for (std::size_t side = 0; side != 2; ++side) {
      if (dice_.one_in(2)) world_.mend(side);
    }
    if (dice_.one_in(16)) world_.check();
  }

  void end() {
    for (std::size_t side = 0; side != 2; ++side) world_.mend(side);
    world_.expect_children_right(true);
    start_some({});
    world_.settle();
    world_.check();
    close_all(world_, kConnections);
    end_all(world_);
  }

  std::string text() const {
    std::string words;
    for (std::size_t i = 0; i != kTroubles.size(); ++i) {
      words += fmt::format("{}{} {}", i == 0 ? "" : ", ", counts_[i], kTroubles[i].name);
    }
    return words;
  }

 private:
  struct Trouble {
    const char* name;
    std::uint64_t weight;
    void (Cases::*make)();
  };
  static const std::array<Trouble, 7> kTroubles;

  void start_some(Mix mix) {
    mix.cancel_one_in = 10;
    for (std::uint64_t i = dice_.between(1, 8); i != 0; --i) world_.start(mix);
  }

  void make_trouble() {
    std::uint64_t all = 0;
    for (const Trouble& one : kTroubles) all += one.weight;
    std::uint64_t left = dice_.between(1, all);
    std::size_t which = 0;
    while (left > kTroubles[which].weight) left -= kTroubles[which++].weight;
    ++counts_[which];
    pause_for(microseconds(dice_.one_in(2) ? 0 : dice_.up_to(1024)));
    try {
      (this->*kTroubles[which].make)();
    } catch (const std::runtime_error& error) {
      throw std::runtime_error(fmt::format("{}: {}", kTroubles[which].name, error.what()));
    }
  }

  std::size_t any_side() { return dice_.between(0, 1); }
  std::size_t any_region() { return dice_.between(0, Arena::kRegions - 1); }

  void nothing() {}

  // A peer of `nccl_net` has lost its comm then.
  void spoil_meanwhile() {
    if (world_.setting().name != "nccl_net") world_.spoil();
    start_some({.bad_one_in = 3});
  }

  // It leaves at once, or lives on, also longer than its parent.
  void fork() {
    world_.fork(any_side(), milliseconds(dice_.one_in(2) ? 0 : dice_.up_to(64)));
    start_some({.bad_one_in = 3});
  }

  void renew() {
    const std::size_t side = any_side();
    const std::size_t region = any_region();
    world_.take_region(side, region);
    start_some({.bad_one_in = 4, .gone_one_in = 2});
    world_.settle();
    world_.bring_region(side, region, dice_.one_in(2));
    start_some({.bad_one_in = 4});
  }

  void reload() {
    for (std::uint64_t i = dice_.between(1, 4); i != 0; --i) world_.import(any_side(), any_region());
    start_some({.bad_one_in = 4});
  }

  void close() {
    world_.expect_failures(bound(world_));
    const std::size_t side = any_side();
    for (std::size_t connection = 0; connection != kConnections; ++connection) {
      const auto closed = world_.worker(side).call(fmt::format("close {} {}", connection, dice_.up_to(16)));
      if (!closed && closed.error().code != ErrorCode::kTimedOut) {
        throw std::runtime_error(closed.error().message);
      }
    }
    end_all(world_);
    world_.open(kConnections, any_side());
  }

  void kill() {
    const std::size_t victim = any_side();
    if (dice_.one_in(3)) world_.fork(victim, milliseconds(dice_.up_to(64)));
    const std::string before = world_.descriptor(victim, 0);
    world_.expect_failures(bound(world_));
    world_.kill(victim);
    end_all(world_);
    world_.worker(victim).start();
    world_.connect(kConnections, any_side());
    world_.expect_stale(victim, before);
    world_.import_all();
    start_some({.bad_one_in = 4});
  }

  World& world_;
  Dice& dice_;
  std::array<std::uint64_t, 7> counts_{};
};

const std::array<Cases::Trouble, 7> Cases::kTroubles{{
    {"of nothing", 4, &Cases::nothing},
    {"of memory under way", 6, &Cases::spoil_meanwhile},
    {"of forks", 4, &Cases::fork},
    {"of regions", 4, &Cases::renew},
    {"of descriptors", 2, &Cases::reload},
    {"of closes", 2, &Cases::close},
    {"of kills", 2, &Cases::kill},
}};

}  // namespace

std::string run_bad(World& world, const Extent& extent) {
  Cases cases(world);
  std::uint64_t done = 0;
  for (; !extent.over(done); ++done) {
    try {
      cases.run_one();
    } catch (const std::runtime_error& error) {
      throw std::runtime_error(fmt::format("case {}: {}", done, error.what()));
    }
  }
  cases.end();
  return fmt::format("{} cases: {}; {}", done, cases.text(), counted(world));
}

}  // namespace p2p::chaos
