// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/slots.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "engine/assist.h"

namespace p2p::engine {
namespace {

constexpr std::size_t kFew = 4;

}  // namespace

Slots::Slots(List list)
    : slots_(std::make_shared<List>(std::move(list))),
      several_rails_(std::any_of(
          begin(), end(), [this](const auto& slot) { return slot->rail() != slots_->front()->rail(); })) {}

Slots Slots::with(std::shared_ptr<Slot> slot) const {
  List list = *slots_;
  const auto behind =
      std::upper_bound(list.begin(), list.end(), slot->number(),
                       [](std::uint32_t number, const auto& one) { return number < one->number(); });
  list.insert(behind, std::move(slot));
  return Slots(std::move(list));
}

Slots Slots::without(const Slot& slot) const {
  List list = *slots_;
  std::erase_if(list, [&](const auto& one) { return one.get() == &slot; });
  return Slots(std::move(list));
}

bool Slots::has(const Slot& slot) const {
  return std::any_of(begin(), end(), [&](const auto& one) { return one.get() == &slot; });
}

std::shared_ptr<Slot> Slots::word_slot() const {
  const auto found = std::find_if(begin(), end(), [](const auto& slot) { return slot->carries_words(); });
  return found == end() ? nullptr : *found;
}

bool Slots::unladen() const {
  return std::none_of(begin(), end(), [](const auto& slot) { return slot->pace().laden(); });
}

std::shared_ptr<Slot> Slots::idle() const {
  const auto found = std::find_if(begin(), end(), [](const auto& slot) { return !slot->pace().laden(); });
  return found == end() ? nullptr : *found;
}

void Slots::signal(std::size_t count, std::size_t first) const {
  for (std::size_t i = 0; i < std::min(count, size()); ++i) at(first + i)->signal();
}

void Slots::assist(const std::shared_ptr<Slot>& one, bool all, const Policy& policy,
                   const std::function<bool()>& through, Slot::Clock::time_point deadline) const {
  if (all && size() <= kFew) {
    engine::assist(*slots_, policy, through, deadline);
  } else if (one && has(*one)) {
    engine::assist({&one, 1}, policy, through, deadline);
  }
}

std::size_t Slots::encrypted() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(*slots_, [](const auto& slot) { return slot->encrypted(); }));
}

std::string Slots::describe(std::size_t expected) const {
  std::map<std::string_view, std::string_view> rails;
  for (const auto& slot : *slots_) rails.emplace(slot->rail(), slot->description());
  std::string text = size() < expected ? fmt::format("{} of {} channels", size(), expected)
                                       : fmt::format("{} channel{}", size(), size() == 1 ? "" : "s");
  std::string_view separator = ": ";
  for (const auto& [rail, description] : rails) {
    text.append(std::exchange(separator, "; ")).append(description);
  }
  return text;
}

}  // namespace p2p::engine
