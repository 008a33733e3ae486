// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <future>
#include <optional>
#include <stdexcept>
#include <thread>

#include "stopper.h"
#include "support/bounds.h"
#include "support/flows.h"
#include "support/process.h"

namespace p2p::chaos {
namespace {

using Clock = std::chrono::steady_clock;
using Kind = Operation::Kind;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using testing::cut;
using testing::Flow;
using testing::flows_of;

/// What a worker holds of the system does not grow.
class Flat {
 public:
  /// Of a GPU, streams and mappings of legacy handles are kept for the next connection, within limits: an
  /// emulated one's are a thread each, and a file.
  Flat(World& world, std::size_t side)
      : world_(world),
        side_(side),
        more_files_(world.setting().on_gpus() ? 32 : 8),
        more_threads_(world.setting().on_gpus() ? 24 : 0) {}

  /// The first time it only looks. What has ended is given back by other threads, a moment later.
  void check() {
    const auto deadline = Clock::now() + std::chrono::seconds(10);
    while (!look()) {
      if (Clock::now() > deadline) throw std::runtime_error("not flat: " + text());
      std::this_thread::yield();
    }
  }

  /// Nothing was looked at before the warm-up was over.
  std::string text() const {
    if (!before_) return "too short to be flat";
    return fmt::format("files {} to {}, threads {} to {}, memory {:.1f} to {:.1f} MiB", before_->open_files,
                       now_.open_files, before_->threads, now_.threads,
                       static_cast<double>(before_->resident_bytes) / (1 << 20),
                       static_cast<double>(now_.resident_bytes) / (1 << 20));
  }

 private:
  bool look() {
    now_ = testing::usage_of(world_.worker(side_).pid());
    if (!before_) before_ = now_;
    return now_.open_files <= before_->open_files + more_files_ &&
           now_.threads <= before_->threads + more_threads_ &&
           now_.resident_bytes <= before_->resident_bytes + kMoreBytes;
  }

  static constexpr long kMoreBytes = (testing::kSanitized ? 300L : 12L) << 20;

  World& world_;
  const std::size_t side_;
  const long more_files_;
  const long more_threads_;
  std::optional<testing::Usage> before_;
  testing::Usage now_;
};

/// Some of those of channels, or all: not the session's, which is the first.
std::vector<Flow> some_of(World& world, std::vector<Flow> flows) {
  flows.erase(flows.begin());
  if (flows.empty()) return flows;  // the streams are at rest
  const std::size_t count = world.dice().between(1, flows.size());
  for (std::size_t i = 0; i != count; ++i)
    std::swap(flows[i], flows[world.dice().between(i, flows.size() - 1)]);
  flows.resize(count);
  return flows;
}

/// In the middle of operations, and some more follow. How many were there to be cut: one may take another
/// along.
std::ptrdiff_t cut_meanwhile(World& world, const std::vector<Flow>& flows) {
  auto cutting =
      std::async(std::launch::async, [&] { return std::count_if(flows.begin(), flows.end(), cut); });
  const Mix mix{.depth = 24};
  for (std::size_t i = 0; i != mix.depth; ++i) world.start(mix);
  while (cutting.wait_for(microseconds(0)) != std::future_status::ready) {
    world.go_on(mix, Clock::now() + milliseconds(2));
  }
  world.go_on(mix, Clock::now() + milliseconds(5));
  return cutting.get();
}

/// Any of the links that there are, and worse ones.
std::string any_profile(Dice& dice) {
  constexpr std::array kDelays{200, 1000, 10000, 50000};
  constexpr std::array kLosses{0, 1000, 10000, 50000};
  constexpr std::array kRates{20, 100, 500};
  const auto sometimes = [&](std::uint64_t most) { return dice.one_in(3) ? dice.up_to(most) : 0; };
  return fmt::format(
      "rate_mbit={} delay_us={} jitter_us={} loss_ppm={} duplicate_ppm={} late_ppm={} queue_us={}",
      kRates[dice.between(0, kRates.size() - 1)], kDelays[dice.between(0, kDelays.size() - 1)],
      sometimes(20000), kLosses[dice.between(0, kLosses.size() - 1)], sometimes(50000), sometimes(50000),
      1000 * dice.up_to(64));
}

/// Brings a connection into one of its phases and leaves it there.
class Phases {
 public:
  static constexpr std::array kNames{"connect", "handshake", "import", "write",
                                     "read",    "message",   "idle",   "close"};

  Phases(World& world, std::size_t victim) : world_(world), victim_(victim) {}

  void enter(std::size_t phase, std::size_t connector) {
    const std::string name = kNames.at(phase);
    world_.register_all();
    if (name == "connect" || name == "handshake") {
      asked(connector, world_.ask_to_connect(0, connector));
      pause_for(microseconds(world_.dice().up_to(name == "connect" ? 256 : 8192)));
    } else if (name == "import") {
      world_.connect(1, connector);
      for (std::size_t region = 0; region != Arena::kRegions; ++region) {
        for (std::size_t side = 0; side != 2; ++side) asked(1 - side, world_.ask_to_import(0, side, region));
      }
      pause_for(microseconds(world_.dice().up_to(1024)));
    } else {
      world_.open(2, connector);
      go_on(name);
    }
  }

  /// Questions to the one that lives are answered, whatever the answer.
  void finish() {
    for (const std::uint64_t question : questions_) {
      static_cast<void>(world_.worker(1 - victim_).answer(question, bound(world_)));
    }
    questions_.clear();
  }

 private:
  void asked(std::size_t side, std::uint64_t question) {
    if (side != victim_) questions_.push_back(question);
  }

  void go_on(const std::string& phase) {
    const Mix mix;
    if (phase == "idle") {
      world_.go_on(mix, Clock::now() + milliseconds(2));
      return world_.settle();
    }
    const Kind kind = phase == "read" ? Kind::kRead : phase == "message" ? Kind::kSend : Kind::kWrite;
    for (std::size_t i = 0; i != mix.depth; ++i) world_.start_one(kind, mix);
    if (phase == "close") {
      world_.expect_failures(bound(world_));
      const std::size_t side = world_.dice().between(0, 1);
      asked(side, world_.worker(side).ask(fmt::format("close 0 {}", bound(world_).count())));
    }
    pause_for(microseconds(world_.dice().up_to(4096)));
  }

  World& world_;
  const std::size_t victim_;
  std::vector<std::uint64_t> questions_;
};

}  // namespace

void pause_for(microseconds time) {
  const auto end = Clock::now() + time;
  while (Clock::now() < end) {
  }
}

std::string counted(const World& world) {
  const Counts& counts = world.counts();
  return fmt::format("{} operations: {} done, {} cancelled, {} failed; the longest {} ms", counts.started,
                     counts.done, counts.cancelled, counts.failed, counts.longest.count());
}

void end_all(World& world) {
  world.settle();
  world.fence();
  world.check();
  world.forget();
}

milliseconds bound(const World& world) { return world.setting().keepalive + testing::kMargin; }

void close_all(World& world, std::size_t connections) {
  for (std::size_t connection = 0; connection != connections; ++connection) {
    const auto closed = world.worker(connection % 2).call(fmt::format("close {} 10000", connection));
    if (!closed) throw std::runtime_error("close: " + closed.error().message);
  }
}

std::string run_kill(World& world, const Extent& extent) {
  constexpr std::size_t kVictim = 1;
  constexpr std::uint64_t kWarm = 2 * Phases::kNames.size();
  Flat flat(world, 1 - kVictim);
  Phases phases(world, kVictim);
  std::uint64_t cycle = 0;
  for (; !extent.over(cycle); ++cycle) {
    const std::size_t phase = cycle % Phases::kNames.size();
    try {
      phases.enter(phase, cycle / Phases::kNames.size() % 2);
      world.expect_failures(bound(world));
      world.kill(kVictim);
      phases.finish();
      end_all(world);
    } catch (const std::runtime_error& error) {
      throw std::runtime_error(
          fmt::format("cycle {}, killed in {}: {}", cycle, Phases::kNames.at(phase), error.what()));
    }
    if (cycle >= kWarm) flat.check();
    world.worker(kVictim).start();
  }
  return fmt::format("{} cycles; {}; the other's {}", cycle, counted(world), flat.text());
}

std::string run_cancel(World& world, const Extent& extent) {
  world.open(2);
  const Mix mix{.depth = 24, .cancel_one_in = 2};
  while (!extent.over(world.counts().cancelled)) world.go_on(mix, Clock::now() + milliseconds(200));
  world.settle();
  world.check();
  return counted(world);
}

std::string run_stop(World& world, const Extent& extent) {
  world.open(2);
  std::uint64_t stops = 0;
  {
    const Stopper stopper({world.worker(0).pid(), world.worker(1).pid()}, world.dice().between(0, ~0U),
                          extent.longest_stop);
    const Mix mix{.cancel_one_in = 10, .renew_one_in = 2000};
    for (; !extent.over(stops); stops = stopper.count()) world.go_on(mix, Clock::now() + milliseconds(100));
  }
  world.settle();
  world.check();
  return fmt::format("{} stops of up to {} ms; {}", stops, extent.longest_stop.count(), counted(world));
}

std::string run_leave(World& world, const Extent& extent) {
  std::uint64_t cycle = 0;
  std::size_t held = 0;
  for (; !extent.over(cycle); ++cycle) {
    Dice& dice = world.dice();
    const std::size_t leaver = cycle % 2;
    Worker& other = world.worker(1 - leaver);
    world.open(2, cycle / 2 % 2);
    const Mix mix{.depth = 24};
    for (std::size_t i = 0; i != mix.depth; ++i) world.start(mix);
    world.go_on(mix, Clock::now() + microseconds(dice.up_to(4096)));
    world.expect_failures(bound(world));
    other.stop();
    for (std::size_t connection = 0; connection != 2; ++connection) {
      const auto closed = world.worker(leaver).call(fmt::format("close {} {}", connection, dice.up_to(20)));
      if (!closed && closed.error().code != ErrorCode::kTimedOut) {
        throw std::runtime_error("close: " + closed.error().message);
      }
    }
    const auto until = Clock::now() + milliseconds(dice.up_to(64));
    do {
      world.collect();
    } while (Clock::now() < until);
    held += world.take_back(leaver);
    world.check();
    const bool dies = dice.one_in(4);
    dies ? world.kill(1 - leaver) : other.go_on();
    end_all(world);
    if (dies) other.start();
  }
  return fmt::format("{} cycles, {} regions held meanwhile; {}", cycle, held, counted(world));
}

std::string run_cut(World& world, const Extent& extent) {
  std::uint64_t cycle = 0;
  std::ptrdiff_t cuts = 0;
  for (; !extent.over(cycle); ++cycle) {
    const std::size_t connector = cycle / 2 % 2;
    world.open(1, connector);
    const std::vector<Flow> flows = flows_of(world.worker(connector).pid());
    const bool session = cycle % 2 == 1;
    const std::vector<Flow> chosen = session ? std::vector{flows.front()} : some_of(world, flows);
    cuts += cut_meanwhile(world, chosen);
    if (cuts == 0 && session) throw std::runtime_error("ss -K cuts no connection here");
    world.settle();
    close_all(world, 1);
    end_all(world);
  }
  return fmt::format("{} cycles, {} sockets cut; {}", cycle, cuts, counted(world));
}

std::string run_rails(World& world, const Extent& extent) {
  const int rails = world.setting().rails;
  if (rails == 0) throw std::runtime_error("it takes a setting with rails");
  world.open(1);
  const auto go_on = [&](milliseconds most) {
    const milliseconds time(world.dice().between(0, static_cast<std::uint64_t>(most.count())));
    world.go_on({.cancel_one_in = 20}, Clock::now() + time);
  };
  std::uint64_t cycle = 0;
  for (; !extent.over(cycle); ++cycle) {
    const auto rail = static_cast<int>(world.dice().between(1, static_cast<std::uint64_t>(rails)));
    const auto lose = world.dice().one_in(2) ? &testing::Rails::set_dark : &testing::Rails::set_down;
    (world.rails().*lose)(rail, true);
    // Some are known as lost by then; and the next one goes while this one may not be back yet.
    go_on(2 * world.setting().keepalive);
    (world.rails().*lose)(rail, false);
    if (!world.rails().made()) throw std::runtime_error(world.rails().made().error().message);
    go_on(world.setting().keepalive);
  }
  world.settle();
  world.check();
  return fmt::format("{} times; {}", cycle, counted(world));
}

std::string run_netem(World& world, const Extent& extent) {
  if (world.setting().congestion_control.empty()) throw std::runtime_error("it takes a setting with a link");
  const auto go_on = [&](const std::string& profile, std::uint64_t most_ms, std::uint64_t renew_one_in) {
    const auto counted = world.link().change(profile);
    if (!counted) throw std::runtime_error(counted.error().message);
    world.go_on({.depth = 8, .cancel_one_in = 20, .renew_one_in = renew_one_in},
                Clock::now() + milliseconds(world.dice().between(50, most_ms)));
    return *counted;
  };
  // In between, so that what is under way ends in time. A region is renewed then alone: that waits for what
  // uses it, and meanwhile no link changes.
  const std::string good = "rate_mbit=500 delay_us=200 jitter_us=0 loss_ppm=0 duplicate_ppm=0 late_ppm=0";
  world.open(2);
  std::uint64_t cycle = 0;
  std::string counts;
  for (; !extent.over(cycle); ++cycle) {
    go_on(any_profile(world.dice()), 3000, 0);
    counts = go_on(good, 1000, 500);
  }
  world.settle();
  world.check();
  return fmt::format("{} links: {}; {}", cycle, counts, counted(world));
}

std::string run_starve(World& world, const Extent& extent) {
  Flat flat(world, 0);
  std::uint64_t cycle = 0;
  std::uint64_t opened = 0;
  for (; !extent.over(cycle); ++cycle) {
    world.register_all();
    const std::size_t starved = cycle % 2;
    const std::size_t connector = cycle / 2 % 2;
    world.worker(starved).tell(fmt::format("limit_files {}", world.dice().between(1, 12)));
    const std::uint64_t question = world.ask_to_connect(0, connector);
    const bool open = world.worker(connector).answer(question, testing::kLimit).has_value();
    opened += open;
    world.worker(starved).tell("limit_files 0");
    if (open) static_cast<void>(world.worker(connector).call("close 0 10000"));
    world.forget();
    world.open(1, connector);
    world.go_on({}, Clock::now() + milliseconds(5));
    world.settle();
    close_all(world, 1);
    world.forget();
    if (cycle >= 8) flat.check();
  }
  return fmt::format("{} cycles, {} of them could connect; {}; {}", cycle, opened, counted(world),
                     flat.text());
}

std::string run_soak(World& world, const Extent& extent) {
  world.open(8);
  Flat left(world, 0);
  Flat right(world, 1);
  const Mix mix{.depth = 32, .cancel_one_in = 20, .renew_one_in = 500, .drop_one_in = 2000};
  constexpr std::chrono::seconds kWarmUp{60};
  const auto start = Clock::now();
  const auto passed = [&] { return std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - start); };
  while (!extent.over(static_cast<std::uint64_t>(passed().count()))) {
    world.go_on(mix, Clock::now() + std::chrono::seconds(1));
    if (passed() < kWarmUp) continue;
    left.check();
    right.check();
  }
  world.settle();
  world.check();
  close_all(world, 8);
  return fmt::format("{} s; {}; {} regions renewed; {} | {}", passed().count(), counted(world),
                     world.counts().renewed, left.text(), right.text());
}

}  // namespace p2p::chaos
