// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "connection_table.h"

#include <algorithm>
#include <utility>

#include "errors.h"

namespace p2p::python {

std::shared_ptr<const Link> ConnectionTable::add(Connection connection) {
  auto link = std::make_shared<Link>();
  link->id = static_cast<std::uint64_t>(connection.id());
  link->peer = decode_note(connection.peer());
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

std::deque<std::shared_ptr<const Link>>& ConnectionTable::queue(Purpose purpose) {
  return purpose == Purpose::kLocal ? accepted_local_ : accepted_;
}

void ConnectionTable::sort_in(Connection connection) {
  std::shared_ptr<const Link> link = add(std::move(connection));
  if (passive_ && link->peer.purpose == Purpose::kRemoteEndpoint) return;
  queue(link->peer.purpose).push_back(std::move(link));
}

Result<std::shared_ptr<const Link>> ConnectionTable::accept(Endpoint& engine, Purpose purpose,
                                                            std::chrono::nanoseconds slice) {
  std::unique_lock lock(accept_mutex_);
  auto& ready = queue(purpose);
  if (ready.empty() && taking_) {
    arrived_.wait_for(lock, slice, [&] { return !ready.empty() || !taking_; });
  }
  if (ready.empty() && !taking_) {
    taking_ = true;
    lock.unlock();
    Result<Connection> connection = engine.accept(slice);
    lock.lock();
    taking_ = false;
    if (connection) sort_in(std::move(*connection));
    arrived_.notify_all();
    if (!connection && connection.error().code != ErrorCode::kTimedOut) {
      return tl::unexpected(std::move(connection.error()));
    }
  }
  if (ready.empty()) return failure(ErrorCode::kTimedOut, "no peer has connected in time");
  std::shared_ptr<const Link> link = std::move(ready.front());
  ready.pop_front();
  return link;
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
  accepted_local_.clear();
}

}  // namespace p2p::python
