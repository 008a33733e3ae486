// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "arena.h"
#include "bad_pages.h"
#include "dice.h"
#include "notes.h"
#include "operation.h"
#include "shapes.h"
#include "support/long_link.h"
#include "support/rails.h"
#include "worker.h"

namespace p2p::chaos {

/// How the two workers are made.
struct Setting {
  std::string name;
  std::vector<std::string> environment;
  int rails = 0;                      ///< between two hosts with a worker each; 0: both are on this one
  std::string congestion_control{};   ///< of two hosts with a long link between them; empty: there is none
  std::array<std::string, 2> gpus{};  ///< of emulated GPUs, where the workers' memory is: as Board's
  std::chrono::milliseconds keepalive{3000};

  bool on_gpus() const { return gpus != decltype(gpus)(); }
};

/// What is done at random.
struct Mix {
  std::size_t depth = 12;  ///< operations under way
  std::uint64_t cancel_one_in = 0;
  std::uint64_t renew_one_in = 0;  ///< a region is taken back and comes again
  std::uint64_t drop_one_in = 0;   ///< ... in the callback of a transfer
  std::uint64_t bad_one_in = 0;    ///< one picks a cell that meets bad pages, if there are any
  std::uint64_t gone_one_in = 0;   ///< one picks a cell of a region that was taken back, if there is one
};

struct Counts {
  std::uint64_t started = 0;
  std::uint64_t done = 0;
  std::uint64_t cancelled = 0;
  std::uint64_t failed = 0;
  std::uint64_t renewed = 0;
  std::chrono::milliseconds longest{0};  ///< from an operation's start, or the trouble, to its end
};

/// Two workers, what they do to each other, and what their memory must be. Whatever is not as it must be
/// throws std::runtime_error. One thread.
class World {
 public:
  World(const Setting& setting, std::uint64_t seed);

  Worker& worker(std::size_t side) { return *workers_[side]; }
  Dice& dice() { return dice_; }
  const Counts& counts() const { return counts_; }
  const Setting& setting() const { return setting_; }
  testing::Rails& rails() { return *rails_; }
  testing::LongLink& link() { return *link_; }

  /// Registers what is not registered.
  void register_all();

  /// Opens so many connections, the even ones from `first` and the odd ones to it.
  void connect(std::size_t connections, std::size_t first = 0);

  /// The same, and imports all regions.
  void open(std::size_t connections, std::size_t first = 0);
  void import_all();
  std::uint64_t ask_to_connect(std::size_t connection, std::size_t side);

  /// What `side` has registered, at the other: a question to that one.
  std::uint64_t ask_to_import(std::size_t connection, std::size_t side, std::size_t region,
                              bool again = false);

  /// Starts one operation or none, as memory allows.
  void start(const Mix& mix);
  void start_one(Operation::Kind kind, const Mix& mix);

  /// Starts, cancels and looks, as `mix` says, until `end`.
  void go_on(const Mix& mix, std::chrono::steady_clock::time_point end);

  /// Takes what has ended or was heard; true if there was anything.
  bool collect();
  bool idle() const { return flying_.empty(); }

  /// From here on operations may fail, and end within `limit`.
  void expect_failures(std::chrono::milliseconds limit);

  void kill(std::size_t side);

  /// Some pages of a worker's arena turn bad there, also under what is at work.
  void spoil();
  void mend(std::size_t side);
  const BadMemory& bad_memory() const { return bad_; }

  /// A worker forks a child, which lives for so long and to which the engine says no.
  void fork(std::size_t side, std::chrono::milliseconds life);

  /// No child has ended otherwise. With `all` also those that live are waited for.
  void expect_children_right(bool all);

  /// Nothing cost a channel.
  void expect_channels_kept();

  /// A region is taken back, also from what is at work, and registered again: `in_place` so that the
  /// descriptor that the peer has is good again.
  void take_region(std::size_t side, std::size_t region);
  void bring_region(std::size_t side, std::size_t region, bool in_place = false);

  /// Over every connection; once more changes nothing.
  void import(std::size_t side, std::size_t region, bool again = false);

  /// The descriptor of a region of a process that has ended is refused.
  void expect_stale(std::size_t side, const std::string& descriptor);
  const std::string& descriptor(std::size_t side, std::size_t region) const {
    return descriptors_[side][region];
  }

  /// Waits until all is at its end and all that must have been heard was.
  void settle();

  /// Takes those regions of `side` back that it gives back at once. How many it did not.
  std::size_t take_back(std::size_t side);

  /// Takes all regions of living workers back. From then on nothing is in doubt.
  void fence();

  /// Every byte.
  void check();

  /// Waits until no connection is left at the living workers. Operations may not fail any more.
  void forget();

 private:
  using Time = std::chrono::steady_clock::time_point;

  void make_link(std::uint64_t seed);
  enum class Region { kDown, kUp, kDropped };

  Cell* pick(std::size_t side, std::size_t size, Region state = Region::kUp);
  Cell* pick_bad();
  std::pair<Cell*, Cell*> pick_both(std::size_t side, bool message, const Mix& mix);
  std::vector<Block> cut(std::size_t size);
  std::unique_ptr<Operation> make(Operation::Kind kind, std::size_t side, Cell* local, Cell* remote);
  void lay_out(Operation& operation, const Shapes& shapes) const;
  std::size_t in_region(const Cell* cell) const;
  std::string where(const Operation& operation) const;
  void drop(const Operation& operation);
  void post(std::unique_ptr<Operation> operation, const Mix& mix);
  void finish(std::unique_ptr<Operation> operation);
  bool may_fail(const Operation& operation, const Ending& ending) const;
  void expect_due_failure(const Operation& operation) const;
  void hear();
  void cancel_what_is_due();
  void expect_in_time() const;
  void free(Cell*& cell);
  void resolve(Operation& operation);
  void renew(std::size_t side, std::size_t region);
  Status try_release(std::size_t side, std::size_t region, std::chrono::milliseconds within);
  void release(std::size_t side, std::size_t region);
  void mark_leaving(std::size_t side, std::size_t region);
  void register_one(std::size_t side, std::size_t region, const std::string& before = "");
  void register_dropped();
  bool in_use(std::size_t side, std::size_t region) const;
  Arena& arena(const Cell& cell) { return arenas_[cell.side]; }

  const Setting setting_;
  std::unique_ptr<testing::Rails> rails_;
  std::unique_ptr<testing::LongLink> link_;
  Dice dice_;
  std::array<std::unique_ptr<Worker>, 2> workers_;
  std::vector<Arena> arenas_;
  std::array<std::array<Region, Arena::kRegions>, 2> regions_{};
  std::array<std::array<std::string, Arena::kRegions>, 2> descriptors_;
  std::size_t connections_ = 0;
  std::vector<std::unique_ptr<Operation>> flying_;
  std::vector<std::unique_ptr<Operation>> doubts_;  // have failed; their targets may still change
  std::array<std::vector<std::size_t>, 2> slots_;   // free ones
  Notes notes_;
  BadMemory bad_;
  std::uint64_t number_ = 0;
  bool failures_ = false;
  Time trouble_;
  std::chrono::milliseconds limit_;
  Counts counts_;
};

}  // namespace p2p::chaos
