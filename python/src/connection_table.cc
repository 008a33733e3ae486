// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "connection_table.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "convert/errors.h"

namespace p2p::python {

std::shared_ptr<const Link> ConnectionTable::add(Connection connection, Link::Origin origin,
                                                 std::uint64_t number) {
  auto link = std::make_shared<Link>();
  const Peer peer = connection.peer();
  link->id = static_cast<std::uint64_t>(connection.id());
  link->peer = decode_note(peer);
  link->incarnation = peer.incarnation;
  link->origin = origin;
  link->number = origin == Link::Origin::kDialled ? number : link->peer.number;
  link->connection = std::move(connection);
  const std::lock_guard lock(mutex_);
  if (links_.size() >= prune_at_) {
    std::erase_if(links_, [](const auto& entry) {
      return entry.second->connection.state() == ConnectionState::kClosed;
    });
    prune_at_ = std::max(kPrune, 2 * links_.size());
  }
  links_.insert_or_assign(link->id, link);
  return link;
}

std::shared_ptr<const Link> ConnectionTable::find(std::uint64_t id) const {
  const std::lock_guard lock(mutex_);
  const auto found = links_.find(id);
  return found == links_.end() ? nullptr : found->second;
}

std::shared_ptr<const Link> ConnectionTable::remove(std::uint64_t id) {
  const std::lock_guard lock(mutex_);
  const auto found = links_.extract(id);
  return found ? found.mapped() : nullptr;
}

bool ConnectionTable::meant_for(const Link& link, Purpose purpose, const std::string& own_address) {
  const Purpose theirs = link.peer.purpose;
  if (theirs == purpose) return true;
  // A connection by metadata says nothing of how it is to be accepted.
  if (theirs != Purpose::kRemoteEndpoint) return false;
  return purpose == Purpose::kConnect || link.peer.address == own_address;
}

bool ConnectionTable::left_to_accept(const Link& link, const std::string& own_address) const {
  if (std::chrono::steady_clock::now() - link.since >= kToAccept) return false;
  if (passive_ && link.peer.purpose == Purpose::kRemoteEndpoint) return false;
  return (accepts_ && meant_for(link, Purpose::kConnect, own_address)) ||
         (accepts_local_ && meant_for(link, Purpose::kLocal, own_address));
}

Status ConnectionTable::sort_in(Endpoint& engine) {
  for (;;) {
    Result<Connection> connection = engine.accept(std::chrono::nanoseconds{0});
    if (!connection) {
      if (connection.error().code == ErrorCode::kTimedOut) return {};
      return tl::unexpected(std::move(connection.error()));
    }
    std::shared_ptr<const Link> link = add(std::move(*connection), Link::Origin::kAccepted);
    const bool passively = passive_ && link->peer.purpose == Purpose::kRemoteEndpoint;
    if (passively && passively_.size() % kPrune == kPrune - 1) {
      std::erase_if(passively_,
                    [](const auto& one) { return one->connection.state() == ConnectionState::kClosed; });
    }
    (passively ? passively_ : accepted_).push_back(std::move(link));
  }
}

Result<std::shared_ptr<const Link>> ConnectionTable::accept(Endpoint& engine, Purpose purpose,
                                                            std::chrono::nanoseconds slice) {
  const std::string own_address = engine.address();
  for (bool waited = false;; waited = true) {
    const std::uint64_t seen = engine.wait_for_peer(0, std::chrono::nanoseconds{0});
    {
      const std::lock_guard lock(accept_mutex_);
      (purpose == Purpose::kLocal ? accepts_local_ : accepts_) = true;
      const Status sorted = sort_in(engine);
      const auto found = std::ranges::find_if(
          accepted_, [&](const auto& link) { return meant_for(*link, purpose, own_address); });
      if (found != accepted_.end()) {
        std::shared_ptr<const Link> link = std::move(*found);
        accepted_.erase(found);
        return link;
      }
      if (!sorted) return tl::unexpected(sorted.error());
    }
    if (waited) return failure(ErrorCode::kTimedOut, "no peer has connected in time");
    engine.wait_for_peer(seen, slice);
  }
}

std::shared_ptr<const Link> ConnectionTable::crossing(Endpoint& engine, const Link& mine) {
  if (mine.origin != Link::Origin::kDialled) return nullptr;
  const std::lock_guard accepting(accept_mutex_);
  if (mine.partner) return mine.partner;
  (void)sort_in(engine);                                             // what cannot be taken does not cross
  std::map<std::pair<std::uint64_t, std::uint64_t>, Queue*> theirs;  // in the order of their making
  for (Queue* queue : {&accepted_, &passively_}) {
    for (const auto& link : *queue) {
      const bool open = link->connection.state() == ConnectionState::kOpen;
      if (open && link->incarnation == mine.incarnation)
        theirs.emplace(std::pair(link->number, link->id), queue);
    }
  }
  if (theirs.empty()) return nullptr;
  const std::lock_guard lock(mutex_);
  if (!knows_all_of(engine, mine.incarnation)) return nullptr;  // an earlier one may still be on its way
  const auto before = std::ranges::count_if(links_, [&](const auto& entry) {
    const Link& link = *entry.second;
    return link.number < mine.number && link.origin == Link::Origin::kDialled && !link.partner &&
           link.incarnation == mine.incarnation && link.connection.state() == ConnectionState::kOpen;
  });
  if (static_cast<std::size_t>(before) >= theirs.size()) return nullptr;
  const auto& [which, queue] = *std::next(theirs.begin(), before);
  const auto found = std::ranges::find(*queue, which.second, [](const auto& link) { return link->id; });
  if (left_to_accept(**found, engine.address())) return nullptr;
  mine.partner = std::move(*found);
  queue->erase(found);
  return mine.partner;
}

bool ConnectionTable::knows_all_of(Endpoint& engine, Incarnation peer) const {
  return std::ranges::none_of(engine.connections(), [&](const Connection& one) {
    if (links_.contains(static_cast<std::uint64_t>(one.id()))) return false;
    const ConnectionState state = one.state();
    const bool coming = state == ConnectionState::kConnecting || state == ConnectionState::kOpen;
    return coming && one.peer().incarnation == peer;
  });
}

bool ConnectionTable::decided_on_all_of(Endpoint& engine, Incarnation peer) {
  const std::scoped_lock lock(accept_mutex_, mutex_);
  const std::string own_address = engine.address();
  const bool decided = std::ranges::none_of(accepted_, [&](const auto& link) {
    return link->incarnation == peer && left_to_accept(*link, own_address);
  });
  return decided && knows_all_of(engine, peer);
}

void ConnectionTable::await_crossing(Endpoint& engine, const Link& mine) {
  if (mine.origin != Link::Origin::kDialled) return;
  const Deadline deadline = std::chrono::steady_clock::now() + kToOpen + kToAccept;
  for (;;) {
    const std::uint64_t seen = engine.wait_for_peer(0, std::chrono::nanoseconds{0});
    if (const std::lock_guard lock(accept_mutex_); !sort_in(engine)) return;
    if (decided_on_all_of(engine, mine.incarnation) || passed(deadline)) return;
    Released released;
    engine.wait_for_peer(seen, next_slice(deadline));
  }
}

void ConnectionTable::serve_passively() {
  const std::lock_guard lock(accept_mutex_);
  passive_ = true;
  std::ranges::copy_if(accepted_, std::back_inserter(passively_),
                       [](const auto& link) { return link->peer.purpose == Purpose::kRemoteEndpoint; });
  std::erase_if(accepted_, [](const auto& link) { return link->peer.purpose == Purpose::kRemoteEndpoint; });
}

void ConnectionTable::clear() {
  const std::scoped_lock lock(accept_mutex_, mutex_);
  links_.clear();
  accepted_.clear();
  passively_.clear();
}

}  // namespace p2p::python
