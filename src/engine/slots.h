// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/policy.h"
#include "engine/slot.h"

namespace p2p::engine {

/// The channels of a lane that are up, in the order of their numbers and so in the same one on both sides,
/// whichever came up first. A value that never changes: whoever goes through one is not disturbed by channels
/// that come and go. Copies cost nothing.
class Slots {
 public:
  Slots() : slots_(std::make_shared<List>()) {}

  Slots with(std::shared_ptr<Slot> slot) const;
  Slots without(const Slot& slot) const;

  auto begin() const { return slots_->begin(); }
  auto end() const { return slots_->end(); }
  std::size_t size() const { return slots_->size(); }
  bool empty() const { return slots_->empty(); }
  const std::shared_ptr<Slot>& first() const { return slots_->front(); }

  /// Any number will do: they are counted round.
  const std::shared_ptr<Slot>& at(std::size_t number) const { return (*slots_)[number % slots_->size()]; }
  bool has(const Slot& slot) const;

  /// The first that carries words; null: none does.
  std::shared_ptr<Slot> word_slot() const;

  /// They are of more than one rail, which may differ in speed.
  bool of_several_rails() const { return several_rails_; }

  /// None has pieces under way.
  bool unladen() const;

  /// The first that has none; null: all have.
  std::shared_ptr<Slot> idle() const;

  /// Wakes `count` of them, at most all, from number `first` on.
  void signal(std::size_t count, std::size_t first) const;

  /// Moves one of them on from a waiting caller's thread, as `engine::assist` does, or all if `all` and they
  /// are few: more are moved quicker by their workers.
  void assist(const std::shared_ptr<Slot>& one, bool all, const Policy& policy,
              const std::function<bool()>& through, Slot::Clock::time_point deadline) const;

  /// How many of them are encrypted.
  std::size_t encrypted() const;

  /// How many there are, of how many if that is more, and one of each rail as it describes itself.
  std::string describe(std::size_t expected = 0) const;

 private:
  using List = std::vector<std::shared_ptr<Slot>>;

  explicit Slots(List list);

  std::shared_ptr<const List> slots_;
  bool several_rails_ = false;
};

}  // namespace p2p::engine
