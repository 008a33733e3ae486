// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/strangers.h"

#include <algorithm>
#include <utility>

namespace p2p::engine {

std::optional<Strangers::Id> Strangers::add(const std::string& address, Clock::time_point now, Drop drop) {
  const auto known = of_address_.find(address);
  bool room = true;
  if (known != of_address_.end() && known->second.size() >= limits_.of_one_address) {
    room = make_room(address, now);
  } else if (entries_.size() >= limits_.all) {
    room = make_room(busiest_address(), now);
  }
  if (!room) return count_refused(), std::nullopt;
  const Id id = next_++;
  of_address_[address].silent.insert(id);
  entries_.emplace(id, Entry{address, now + kFirstWords, false, std::move(drop)});
  return id;
}

void Strangers::spoke(Id id, Clock::time_point now, Drop drop) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return;
  OfAddress& all = of_address_.at(found->second.address);
  all.silent.erase(id);
  all.spoke.insert(id);
  found->second.spoke = true;
  found->second.due = now + kProof;
  found->second.drop = std::move(drop);
}

void Strangers::remove(Id id) {
  if (const auto found = entries_.find(id); found != entries_.end()) take(found);
}

bool Strangers::drop_one() {
  if (entries_.empty()) return false;
  const auto silent =
      std::find_if(entries_.begin(), entries_.end(), [](const auto& one) { return !one.second.spoke; });
  send_off(silent != entries_.end() ? silent : entries_.begin());
  return true;
}

bool Strangers::make_room(const std::string& address, Clock::time_point now) {
  const OfAddress& all = of_address_.at(address);
  for (const auto* const ids : {&all.silent, &all.spoke}) {
    if (ids->empty()) continue;
    const auto oldest = entries_.find(*ids->begin());
    if (oldest->second.due > now) continue;
    send_off(oldest);
    return true;
  }
  return false;
}

std::string Strangers::busiest_address() const {
  return std::max_element(of_address_.begin(), of_address_.end(),
                          [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); })
      ->first;
}

void Strangers::send_off(Entries::iterator entry) {
  count_refused();
  const Id id = entry->first;
  take(entry)(id);
}

Strangers::Drop Strangers::take(Entries::iterator entry) {
  const auto all = of_address_.find(entry->second.address);
  all->second.silent.erase(entry->first);
  all->second.spoke.erase(entry->first);
  if (all->second.size() == 0) of_address_.erase(all);
  Drop drop = std::move(entry->second.drop);
  entries_.erase(entry);
  return drop;
}

}  // namespace p2p::engine
