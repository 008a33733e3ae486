// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/listen/strangers.h"

#include <algorithm>
#include <utility>

namespace p2p::engine {

Strangers::Id Strangers::add(const std::string& address, Clock::time_point now, Drop drop) {
  const auto known = of_address_.find(address);
  if (known != of_address_.end() && known->second >= limits_.of_one_address) {
    make_room(address, now);
  } else if (entries_.size() >= limits_.all) {
    make_room(busiest_address(), now);
  }
  ++of_address_[address];
  const Id id = next_++;
  entries_.emplace(id, Entry{address, now + kFirstBytes, std::move(drop)});
  return id;
}

void Strangers::spoke(Id id, Clock::time_point now, Drop drop) {
  if (Entry* const entry = advance(id, Progress::kSpoke, now)) entry->drop = std::move(drop);
}

void Strangers::answered(Id id, Clock::time_point now) { advance(id, Progress::kAnswered, now); }

void Strangers::introduced(Id id, Clock::time_point now) { advance(id, Progress::kSpoke, now); }

/// Null if it was closed meanwhile.
Strangers::Entry* Strangers::advance(Id id, Progress progress, Clock::time_point now) {
  const auto found = entries_.find(id);
  if (found == entries_.end()) return nullptr;
  found->second.progress = progress;
  found->second.due = now + kProof;
  return &found->second;
}

void Strangers::remove(Id id) {
  if (const auto found = entries_.find(id); found != entries_.end()) take(found);
}

bool Strangers::drop_one() {
  if (entries_.empty()) return false;
  evict(std::ranges::min_element(entries_, {}, [](const auto& one) { return one.second.progress; }));
  return true;
}

void Strangers::make_room(const std::string& address, Clock::time_point now) {
  auto oldest = entries_.end();
  auto unanswered = entries_.end();
  auto spoke = entries_.end();
  for (auto one = entries_.begin(); one != entries_.end(); ++one) {
    if (one->second.address != address) continue;
    if (oldest == entries_.end()) oldest = one;
    if (unanswered == entries_.end() && one->second.progress != Progress::kAnswered) unanswered = one;
    if (one->second.due > now) continue;
    if (one->second.progress == Progress::kSilent) return evict(one);
    if (spoke == entries_.end()) spoke = one;
  }
  for (const auto one : {spoke, unanswered, oldest}) {
    if (one != entries_.end()) return evict(one);
  }
}

std::string Strangers::busiest_address() const {
  return std::max_element(of_address_.begin(), of_address_.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

void Strangers::evict(Entries::iterator entry) {
  count_refused();
  const Id id = entry->first;
  take(entry)(id);
}

Strangers::Drop Strangers::take(Entries::iterator entry) {
  const auto count = of_address_.find(entry->second.address);
  if (--count->second == 0) of_address_.erase(count);
  Drop drop = std::move(entry->second.drop);
  entries_.erase(entry);
  return drop;
}

}  // namespace p2p::engine
