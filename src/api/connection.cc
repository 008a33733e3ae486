// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "p2p/connection.h"

#include <utility>

#include "api/latency_rows.h"
#include "engine/connection.h"
#include "engine/transfer/prepared_list.h"
#include "engine/transfer/transfers.h"

namespace p2p {
namespace {

/// In a process that was forked off the endpoint's, where locks may be held for ever: what has no error to
/// give gives nothing.
bool is_left(const engine::Connection& connection) { return !connection.check_process(); }

Result<PreparedTransfer> prepare(const std::shared_ptr<engine::Transfers>& transfers, Operation operation,
                                 std::span<const LocalSpan> local, std::span<const RemoteSpan> remote,
                                 std::span<const engine::StridedPair> strided = {}) {
  auto list = engine::PreparedList::make(transfers, operation, local, remote, strided);
  if (!list) return tl::unexpected(list.error());
  return PreparedTransfer(std::move(*list));
}

Result<PreparedTransfer> prepare(const std::shared_ptr<engine::Transfers>& transfers, Operation operation,
                                 std::span<const LocalStrided> local, std::span<const RemoteStrided> remote) {
  const auto list = engine::StridedList::make(operation, local, remote);
  if (!list) return tl::unexpected(list.error());
  return prepare(transfers, operation, list->local, list->remote, list->pairs);
}

}  // namespace

Connection::Connection(std::shared_ptr<engine::Connection> connection) : connection_(std::move(connection)) {}
ConnectionId Connection::id() const { return connection_->id(); }
ConnectionState Connection::state() const { return connection_->state(); }
Status Connection::status() const { return connection_->status(); }
bool Connection::closed_by_peer() const { return connection_->closed_by_peer(); }
Status Connection::wait_open(std::chrono::nanoseconds timeout) const {
  return connection_->wait_open(timeout);
}
void Connection::on_change(std::function<void()> callback) const {
  if (!is_left(*connection_)) connection_->on_change(std::move(callback));
}
Peer Connection::peer() const { return is_left(*connection_) ? Peer() : connection_->peer(); }

Result<RemoteRegionId> Connection::import_region(const RegionDescriptor& descriptor, bool again) const {
  return connection_->import_region(descriptor, again);
}

Status Connection::wait_imported(RemoteRegionId region, std::chrono::nanoseconds timeout) const {
  if (Status here = connection_->check_process(); !here) return here;
  return connection_->wait_imported(region, timeout);
}

Transfer Connection::write(std::span<const LocalSpan> local, std::span<const RemoteSpan> remote,
                           const PostOptions& options) const {
  return Transfer(connection_->transfers()->start(Operation::kWrite, local, remote, options));
}

Transfer Connection::write(const LocalSpan& local, const RemoteSpan& remote,
                           const PostOptions& options) const {
  return write(std::span(&local, 1), std::span(&remote, 1), options);
}

Transfer Connection::read(std::span<const LocalSpan> local, std::span<const RemoteSpan> remote,
                          const PostOptions& options) const {
  return Transfer(connection_->transfers()->start(Operation::kRead, local, remote, options));
}

Transfer Connection::read(const LocalSpan& local, const RemoteSpan& remote,
                          const PostOptions& options) const {
  return read(std::span(&local, 1), std::span(&remote, 1), options);
}

Transfer Connection::write(std::span<const LocalStrided> local, std::span<const RemoteStrided> remote,
                           const PostOptions& options) const {
  return Transfer(connection_->transfers()->start(Operation::kWrite, local, remote, options));
}

Transfer Connection::read(std::span<const LocalStrided> local, std::span<const RemoteStrided> remote,
                          const PostOptions& options) const {
  return Transfer(connection_->transfers()->start(Operation::kRead, local, remote, options));
}

Result<PreparedTransfer> Connection::prepare_write(std::span<const LocalSpan> local,
                                                   std::span<const RemoteSpan> remote) const {
  return prepare(connection_->transfers(), Operation::kWrite, local, remote);
}

Result<PreparedTransfer> Connection::prepare_read(std::span<const LocalSpan> local,
                                                  std::span<const RemoteSpan> remote) const {
  return prepare(connection_->transfers(), Operation::kRead, local, remote);
}

Result<PreparedTransfer> Connection::prepare_write(std::span<const LocalStrided> local,
                                                   std::span<const RemoteStrided> remote) const {
  return prepare(connection_->transfers(), Operation::kWrite, local, remote);
}

Result<PreparedTransfer> Connection::prepare_read(std::span<const LocalStrided> local,
                                                  std::span<const RemoteStrided> remote) const {
  return prepare(connection_->transfers(), Operation::kRead, local, remote);
}

Transfer Connection::send(std::span<const LocalSpan> message) const {
  return Transfer(connection_->send(message));
}
Transfer Connection::send(const LocalSpan& message) const { return send(std::span(&message, 1)); }
Transfer Connection::recv(std::span<const LocalSpan> into) const {
  return Transfer(connection_->receive(into));
}
Transfer Connection::recv(const LocalSpan& into) const { return recv(std::span(&into, 1)); }
Transfer Connection::notify(std::string_view payload) const { return Transfer(connection_->notify(payload)); }
std::vector<std::string> Connection::take_notifications() const {
  return is_left(*connection_) ? std::vector<std::string>() : connection_->take_notifications();
}
void Connection::on_notification(std::function<void()> callback) const {
  if (!is_left(*connection_)) connection_->on_notification(std::move(callback));
}
std::vector<Route> Connection::routes() const {
  return is_left(*connection_) ? std::vector<Route>() : connection_->report().routes();
}
Result<Explanation> Connection::explain(RegionId local, RemoteRegionId remote) const {
  if (const Status here = connection_->check_process(); !here) return tl::unexpected(here.error());
  return connection_->report().explain(local, remote);
}
Stats Connection::stats() const { return is_left(*connection_) ? Stats() : connection_->report().stats(); }
std::vector<Latency> Connection::latencies() const {
  return is_left(*connection_) ? std::vector<Latency>() : with_any(connection_->latencies());
}
Status Connection::close(std::chrono::nanoseconds timeout) const { return connection_->close(timeout); }

}  // namespace p2p
