// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "holding.h"

#include <algorithm>
#include <utility>

namespace p2p::weights {

namespace {

// A block of deltas is as large as all before it, within these: few are registered, and little is empty.
constexpr std::size_t kSmallBlock = std::size_t{1} << 20;
constexpr std::size_t kLargeBlock = std::size_t{64} << 20;

}  // namespace

Holding::Holding(Node& node, const Key& key, Demand demand, TableAt table)
    : node_(node), key_(key), demand_(std::move(demand)), table_(std::move(table)) {
  have_.resize(demand_.chunks());
  digests_.resize(demand_.chunks());
}

void Holding::add(std::uint32_t chunk, std::uint64_t digest, std::string_view delta) {
  if (have_[chunk]) return;
  have_[chunk] = true;
  digests_[chunk] = digest;
  ++count_;
  bytes_ += demand_.end(chunk) - demand_.begin(chunk);
  if (!delta.empty()) keep(chunk, delta);
  const auto kept = deltas_.find(chunk);
  for (const LinkPtr& link : followers_) {
    if (kept != deltas_.end()) tell_delta(link, chunk, kept->second);
    node_.send(link, Have{key_, {{chunk, digest}}});
  }
}

/// Without it others take the whole chunk: that is all if there is no memory for it.
void Holding::keep(std::uint32_t chunk, std::string_view delta) {
  if (blocks_.empty() || blocks_.back()->bytes.size() - block_used_ < delta.size()) {
    std::size_t size = 0;
    for (const auto& block : blocks_) size += block->bytes.size();
    size = std::max(std::clamp(size, kSmallBlock, kLargeBlock), delta.size());
    auto block = LentTable::make(node_.endpoint(), std::string(size, '\0'));
    if (!block) return;
    blocks_.push_back(std::move(*block));
    block_used_ = 0;
  }
  std::ranges::copy(delta, blocks_.back()->bytes.begin() + static_cast<std::ptrdiff_t>(block_used_));
  deltas_[chunk] = {blocks_.size() - 1, block_used_, static_cast<std::uint32_t>(delta.size())};
  block_used_ += delta.size();
}

void Holding::tell_delta(const LinkPtr& link, std::uint32_t chunk, const Place& place) const {
  const RegionDescriptor memory = blocks_[place.block]->region.descriptor();
  node_.send(link, Delta{key_, chunk, memory, memory.address + place.offset, place.bytes});
}

void Holding::follow(const LinkPtr& link) {
  if (std::ranges::find(followers_, link) == followers_.end()) followers_.push_back(link);
  node_.send(link, Layout{key_, table_, deltas_given_});
  for (const auto& [chunk, place] : deltas_) tell_delta(link, chunk, place);
  Have have{key_, {}};
  for (std::uint32_t chunk = 0; chunk < have_.size(); ++chunk) {
    if (have_[chunk]) have.chunks.push_back({chunk, digests_[chunk]});
    if (have.chunks.size() == kMostChunksTold) {
      node_.send(link, have);
      have.chunks.clear();
    }
  }
  if (!have.chunks.empty()) node_.send(link, have);
}

void Holding::learn(const Member& member) {
  const auto known = std::ranges::find(members_, member.id, &Member::id);
  if (known != members_.end()) {
    *known = member;
  } else if (members_.size() < kMostMembers) {
    members_.push_back(member);
  }
}

void Holding::admit(const LinkPtr& link) {
  Member joins = link->peer;
  std::erase_if(members_, [&](const Member& member) { return member.id == joins.id; });
  joins.order = 1;
  for (const Member& member : members_) joins.order = std::max(joins.order, member.order + 1);
  for (const Member& member : members_) {
    node_.send(link, Tell{key_, member});
    if (const LinkPtr other = node_.link_to(member.id)) node_.send(other, Tell{key_, joins});
  }
  learn(joins);
  node_.send(link, Tell{key_, joins});
  follow(link);
}

void Holding::forget(const LinkPtr& link) {
  std::erase(followers_, link);
  std::erase_if(members_, [&](const Member& member) { return member.id == link->peer.id; });
}

}  // namespace p2p::weights
