// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "connection_table.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "errors.h"

namespace p2p::python {

std::shared_ptr<const Link> ConnectionTable::add(Connection connection, Link::Origin origin) {
  auto link = std::make_shared<Link>();
  const Peer peer = connection.peer();
  link->id = static_cast<std::uint64_t>(connection.id());
  link->peer = decode_note(peer);
  link->incarnation = peer.incarnation;
  link->origin = origin;
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

ConnectionTable::Queue::iterator ConnectionTable::first_for(Purpose purpose, const std::string& own_address) {
  return std::ranges::find_if(accepted_, [&](const auto& link) {
    const Purpose theirs = link->peer.purpose;
    if (theirs == purpose) return true;
    // A connection by metadata says nothing of how it is to be accepted.
    if (theirs != Purpose::kRemoteEndpoint) return false;
    return purpose == Purpose::kConnect || link->peer.address == own_address;
  });
}

Status ConnectionTable::sort_in(Endpoint& engine) {
  for (;;) {
    Result<Connection> connection = engine.accept(std::chrono::nanoseconds{0});
    if (!connection) {
      if (connection.error().code == ErrorCode::kTimedOut) return {};
      return tl::unexpected(std::move(connection.error()));
    }
    std::shared_ptr<const Link> link = add(std::move(*connection), Link::Origin::kAccepted);
    if (passive_ && link->peer.purpose == Purpose::kRemoteEndpoint) continue;
    accepted_.push_back(std::move(link));
  }
}

Result<std::shared_ptr<const Link>> ConnectionTable::accept(Endpoint& engine, Purpose purpose,
                                                            std::chrono::nanoseconds slice) {
  const std::string own_address = engine.address();
  for (bool waited = false;; waited = true) {
    const std::uint64_t seen = engine.wait_for_peer(0, std::chrono::nanoseconds{0});
    {
      const std::lock_guard lock(accept_mutex_);
      const Status sorted = sort_in(engine);
      if (const auto found = first_for(purpose, own_address); found != accepted_.end()) {
        std::shared_ptr<const Link> link = std::move(*found);
        accepted_.erase(found);
        link->claimed.store(true);
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
  const std::scoped_lock accepting(accept_mutex_);
  (void)sort_in(engine);  // what cannot be taken does not cross
  const std::lock_guard lock(mutex_);
  std::uint64_t before = 0;
  std::map<std::uint64_t, std::shared_ptr<const Link>> theirs;
  for (const auto& [id, link] : links_) {
    if (link->incarnation != mine.incarnation || link->connection.state() != ConnectionState::kOpen) continue;
    if (link->origin == Link::Origin::kDialled) {
      before += id < mine.id ? 1 : 0;
    } else if (!link->claimed.load()) {
      theirs.emplace(id, link);
    }
  }
  if (before >= theirs.size()) return nullptr;
  return std::next(theirs.begin(), static_cast<std::ptrdiff_t>(before))->second;
}

bool ConnectionTable::knows_all_of(Endpoint& engine, Incarnation peer) {
  const std::scoped_lock lock(accept_mutex_, mutex_);
  return std::ranges::none_of(engine.connections(), [&](const Connection& one) {
    if (links_.contains(static_cast<std::uint64_t>(one.id()))) return false;
    const ConnectionState state = one.state();
    const bool coming = state == ConnectionState::kConnecting || state == ConnectionState::kOpen;
    return coming && one.peer().incarnation == peer;
  });
}

void ConnectionTable::await_crossing(Endpoint& engine, const Link& mine) {
  if (mine.origin != Link::Origin::kDialled) return;
  const Deadline deadline = std::chrono::steady_clock::now() + std::chrono::seconds{1};
  for (;;) {
    const std::uint64_t seen = engine.wait_for_peer(0, std::chrono::nanoseconds{0});
    if (const std::lock_guard lock(accept_mutex_); !sort_in(engine)) return;
    if (knows_all_of(engine, mine.incarnation) || passed(deadline)) return;
    Released released;
    engine.wait_for_peer(seen, next_slice(deadline));
  }
}

void ConnectionTable::serve_passively() {
  const std::lock_guard lock(accept_mutex_);
  passive_ = true;
  std::erase_if(accepted_, [](const auto& link) { return link->peer.purpose == Purpose::kRemoteEndpoint; });
}

void ConnectionTable::clear() {
  const std::scoped_lock lock(accept_mutex_, mutex_);
  links_.clear();
  accepted_.clear();
}

}  // namespace p2p::python
