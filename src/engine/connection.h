// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "engine/channels/context.h"
#include "engine/channels/lane_set.h"
#include "engine/connection_report.h"
#include "engine/dispatch.h"
#include "engine/messaging/notifications.h"
#include "engine/messaging/receives.h"
#include "engine/messaging/sends.h"
#include "engine/request/lifecycle.h"
#include "engine/session/session.h"
#include "engine/transfer/region_exchange.h"
#include "engine/transfer/transfers.h"
#include "p2p/connection.h"

namespace p2p::engine {

/// One live session with one peer and all that goes over it. Made and owned by the endpoint; the
/// application's handles share it. Thread-safe. Messages of the session come on the reactor's thread.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  /// Each is called once at most, on the reactor's thread.
  struct Observer {
    std::function<void(const std::shared_ptr<Connection>&)> opened;
    std::function<void(const std::shared_ptr<Connection>&)> closed;
  };

  static std::shared_ptr<Connection> make(std::shared_ptr<Context> context, ConnectionId id, Role role,
                                          Observer observer);

  /// Starts the handshake; `deadline` bounds it, channels included.
  using Clock = std::chrono::steady_clock;
  void dial(std::string host, std::uint16_t port, SessionConfig config, Clock::time_point deadline);

  /// Goes on with a session that a peer has opened, from within its `opened`; `deadline` bounds the channels.
  void adopt(std::shared_ptr<Session> session, const SessionPeer& peer, Clock::time_point deadline);

  /// See RegionTable::check_process.
  Status check_process() const { return context_->regions->check_process(); }
  ConnectionId id() const { return id_; }
  ConnectionState state() const { return life_->state(); }
  Status status() const {
    if (Status here = check_process(); !here) return here;
    return life_->status();
  }
  bool closed_by_peer() const { return peer_said_bye_; }
  Status wait_open(std::chrono::nanoseconds timeout);
  void on_change(std::function<void()> callback) { life_->on_change(std::move(callback)); }
  Peer peer() const;

  Result<RemoteRegionId> import_region(const RegionDescriptor& descriptor, bool again = false) {
    if (Status here = check_process(); !here) return tl::unexpected(here.error());
    return imports_->import(descriptor,
                            again ? RegionExchange::Import::kAgain : RegionExchange::Import::kOnce);
  }
  Status wait_imported(RemoteRegionId id, std::chrono::nanoseconds timeout) const {
    return imports_->wait(id, timeout);
  }
  const std::shared_ptr<Transfers>& transfers() const { return transfers_; }

  std::shared_ptr<TransferState> send(std::span<const LocalSpan> message);
  std::shared_ptr<TransferState> receive(std::span<const LocalSpan> into);
  std::shared_ptr<TransferState> notify(std::string_view payload);
  std::vector<std::string> take_notifications() { return notifications_->take(); }
  void on_notification(std::function<void()> callback) { notifications_->on_arrival(std::move(callback)); }

  const ConnectionReport& report() const { return *report_; }
  const Latencies& latencies() const { return transfers_->records().latencies(); }

  Status close(std::chrono::nanoseconds timeout);

  /// Says goodbye and ends everything now; `closed` follows.
  void abort(const Error& error);

  /// `closed` comes before it returns, whatever is still on its way. On the reactor's thread.
  void end_now(const Error& error);

 private:
  Connection(std::shared_ptr<Context> context, ConnectionId id, Role role, Observer observer);
  void wire_up();
  Session::Handlers handlers(Clock::time_point deadline);
  void on_opened(const SessionPeer& peer, Clock::time_point deadline);
  void on_message(wire::Message message);
  Status on_message(wire::Message& message, PostUnlockActions& actions);
  void choose_path();
  void break_off(const Error& error);
  void on_bye(const wire::Bye& bye);
  void offer_later();
  void on_lanes_changed();
  void open_message_path();
  void watch_for_end();
  void end(const Error& error);
  void end_receives(const Error& reason, bool fence_passed);
  std::shared_ptr<Session> session() const;
  void say(const wire::Message& message) {
    if (const auto session = this->session()) session->send(message);
  }
  void say_bye(std::string_view reason);  ///< once, to a peer that takes the connection for open
  void close_session(Error reason) {
    if (const auto session = this->session()) session->close(std::move(reason));
  }

  bool drained() const;
  void changed();

  const std::shared_ptr<Context> context_;
  const ConnectionId id_;
  const Role role_;
  const Observer observer_;
  const std::shared_ptr<Lifecycle> life_ = std::make_shared<Lifecycle>();
  std::shared_ptr<LaneSet> lanes_;
  std::shared_ptr<RegionExchange> imports_;
  std::shared_ptr<MessageStream> messages_;
  std::shared_ptr<Sends> sends_;
  std::shared_ptr<Receives> receives_;
  std::shared_ptr<Notifications> notifications_;
  std::shared_ptr<Transfers> transfers_;
  std::optional<Dispatch> dispatch_;        // written once, before any message comes
  std::optional<ConnectionReport> report_;  // likewise
  std::optional<Reactor::TimerId> timer_;   // reactor's thread only
  bool ended_ = false;                      // likewise: nothing is left

  mutable Mutex mutex_;
  std::shared_ptr<Session> session_ P2P_GUARDED_BY(mutex_);
  SessionPeer peer_ P2P_GUARDED_BY(mutex_);
  bool bye_said_ P2P_GUARDED_BY(mutex_) = false;

  std::atomic<bool> peer_said_bye_{false};
};

}  // namespace p2p::engine
