// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/connections.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/futex.h"
#include "base/log.h"

namespace p2p::engine {
namespace {

// Connections that have ended and are still kept for `accept`, at most.
constexpr std::ptrdiff_t kMaxEndedConnections = 128;

std::shared_ptr<Connection> unwatched(const std::shared_ptr<Context>& context, Role role) {
  const auto ignore = [](const std::shared_ptr<Connection>&) {};
  return Connection::make(context, ConnectionId{0}, role, {ignore, ignore});
}

void add_to(Stats& sum, const Stats& one) {
  sum.transfers_started += one.transfers_started;
  sum.transfers_completed += one.transfers_completed;
  sum.transfers_failed += one.transfers_failed;
  sum.bytes_written += one.bytes_written;
  sum.bytes_read += one.bytes_read;
  sum.messages_received += one.messages_received;
  sum.notifications_sent += one.notifications_sent;
  sum.notifications_received += one.notifications_received;
  sum.notifications_delayed += one.notifications_delayed;
  sum.batches_retried += one.batches_retried;
  sum.reads_paused += one.reads_paused;
  sum.channels_lost += one.channels_lost;
  sum.channels_returned += one.channels_returned;
  sum.session_resumes += one.session_resumes;
  sum.channels_wanted += one.channels_wanted;
  for (const TransportBytes& bytes : one.by_transport) {
    const auto same = std::ranges::find(sum.by_transport, bytes.transport, &TransportBytes::transport);
    TransportBytes& row =
        same != sum.by_transport.end() ? *same : sum.by_transport.emplace_back(bytes.transport);
    row.written += bytes.written;
    row.read += bytes.read;
  }
  sum.pieces_queued += one.pieces_queued;
  sum.channels += one.channels;
  sum.channels_encrypted += one.channels_encrypted;
}

}  // namespace

std::shared_ptr<Connection> Connections::ended(const std::shared_ptr<Context>& context, const Error& why) {
  auto connection = unwatched(context, Role::kConnector);
  connection->end_now(why);
  return connection;
}

std::shared_ptr<Connection> Connections::add(Role role) {
  if (!context_->regions->check_process()) return unwatched(context_, role);
  MutexLock lock(mutex_);
  if (closing_) return nullptr;
  const ConnectionId id{next_id_++};
  auto connection =
      Connection::make(context_, id, role,
                       {[this, role](const std::shared_ptr<Connection>& one) { opened(one, role); },
                        [this](const std::shared_ptr<Connection>& one) { closed(one); }});
  living_.emplace(id, connection);
  return connection;
}

std::shared_ptr<Connection> Connections::accept(Clock::time_point deadline) {
  while (true) {
    const std::uint32_t seen = changes_.load(std::memory_order_acquire);
    {
      MutexLock lock(mutex_);
      if (!unaccepted_.empty()) {
        auto connection = std::move(unaccepted_.front());
        unaccepted_.pop_front();
        return connection;
      }
    }
    if (Clock::now() >= deadline) return nullptr;
    futex_wait(changes_, seen, deadline);
  }
}

std::uint64_t Connections::wait_for_peer(std::uint64_t seen, Clock::time_point deadline) const {
  if (!context_->regions->check_process()) return seen;
  while (true) {
    const std::uint32_t changes = changes_.load(std::memory_order_acquire);
    {
      MutexLock lock(mutex_);
      if (arrived_ != seen) return arrived_;
    }
    if (Clock::now() >= deadline) return seen;
    futex_wait(changes_, changes, deadline);
  }
}

std::vector<std::shared_ptr<Connection>> Connections::all() const {
  MutexLock lock(mutex_);
  std::vector<std::shared_ptr<Connection>> connections;
  connections.reserve(living_.size());
  for (const auto& [id, connection] : living_) connections.push_back(connection);
  return connections;
}

void Connections::close(const Error& error, Clock::time_point deadline) {
  {
    MutexLock lock(mutex_);
    closing_ = true;
    unaccepted_.clear();
  }
  for (const auto& connection : all()) connection->abort(error);
  if (wait_until_none(deadline)) return;
  for (const auto& connection : all()) {
    context_->reactor->post([connection, error] { connection->end_now(error); });
  }
  wait_until_none(Clock::time_point::max());  // as long as the reactor takes, whose end is waited for anyway
}

bool Connections::wait_until_none(Clock::time_point deadline) {
  while (true) {
    const std::uint32_t seen = changes_.load(std::memory_order_acquire);
    {
      MutexLock lock(mutex_);
      if (living_.empty()) return true;
    }
    if (Clock::now() >= deadline) return false;
    futex_wait(changes_, seen, deadline);
  }
}

Stats Connections::stats() const {
  MutexLock lock(mutex_);
  Stats sum = ended_;
  sum.connections_waiting = unaccepted_.size();
  for (const auto& [id, connection] : living_) add_to(sum, connection->report().stats());
  return sum;
}

std::vector<Latency> Connections::latencies() const {
  MutexLock lock(mutex_);
  std::vector<Latency> sum = ended_latencies_;
  for (const auto& [id, connection] : living_) connection->latencies().add_to(sum);
  return sum;
}

void Connections::opened(const std::shared_ptr<Connection>& connection, Role role) {
  if (role == Role::kAcceptor && !keep_for_accept(connection)) {
    const Error error{ErrorCode::kUnavailable, fmt::format("{} connections wait to be accepted already",
                                                           context_->options.max_unaccepted)};
    refusals_.log("a peer's connection is refused: {}", error.message);
    context_->reactor->post([connection, error] { connection->abort(error); });
  }
  changed();
}

bool Connections::keep_for_accept(const std::shared_ptr<Connection>& connection) {
  MutexLock lock(mutex_);
  if (unaccepted_.size() >= context_->options.max_unaccepted) {
    ++ended_.connections_refused;
    return false;
  }
  unaccepted_.push_back(connection);
  ++arrived_;
  return true;
}

// A connection that ended before it was accepted may still hold notifications, so it stays in the queue. An
// application that never accepts must not fill memory with them: the oldest beyond kMaxEndedConnections go.
std::vector<std::shared_ptr<Connection>> Connections::forget_ended() {
  const auto has_ended = [](const auto& one) { return one->state() == ConnectionState::kClosed; };
  auto ended = std::count_if(unaccepted_.begin(), unaccepted_.end(), has_ended);
  std::vector<std::shared_ptr<Connection>> forgotten;
  std::erase_if(unaccepted_, [&](auto& one) {
    if (!has_ended(one) || ended-- <= kMaxEndedConnections) return false;
    forgotten.push_back(std::move(one));
    return true;
  });
  return forgotten;
}

void Connections::closed(const std::shared_ptr<Connection>& connection) {
  std::vector<std::shared_ptr<Connection>> forgotten;  // destroyed after the lock is released
  {
    MutexLock lock(mutex_);
    add_to(ended_, connection->report().stats());
    ended_.pieces_queued = ended_.channels = ended_.channels_encrypted = ended_.channels_wanted = 0;
    connection->latencies().add_to(ended_latencies_);
    living_.erase(connection->id());
    forgotten = forget_ended();
  }
  changed();
}

void Connections::changed() {
  changes_.fetch_add(1, std::memory_order_release);
  futex_wake_all(changes_);
}

}  // namespace p2p::engine
