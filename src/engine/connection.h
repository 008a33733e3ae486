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
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "engine/context.h"
#include "engine/imports.h"
#include "engine/lanes.h"
#include "engine/messages.h"
#include "engine/notifications.h"
#include "engine/session.h"
#include "engine/submission.h"
#include "p2p/connection.h"

namespace p2p::engine {

class PreparedList;

/// One live session with one peer and all that goes over it. Made and owned by the endpoint; the
/// application's handles share it. Thread-safe. Messages of the session come on the reactor's thread.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  /// `opened` and `closed` are called once each at most, on the reactor's thread.
  struct Observer {
    std::function<void(const std::shared_ptr<Connection>&)> opened;
    std::function<void(const std::shared_ptr<Connection>&)> closed;
  };

  static std::shared_ptr<Connection> make(std::shared_ptr<Context> context, ConnectionId id, Role role,
                                          Observer observer);

  /// Starts the handshake; `deadline` bounds it, channels included.
  using Clock = std::chrono::steady_clock;
  void dial(std::string host, std::uint16_t port, SessionConfig config, Clock::time_point deadline);
  void accept(UniqueFd socket, SessionConfig config, Clock::time_point deadline);

  ConnectionId id() const { return id_; }
  ConnectionState state() const { return state_.load(std::memory_order_acquire); }
  Status status() const;
  Status wait_open(std::chrono::nanoseconds timeout);
  void on_change(std::function<void()> callback);
  Peer peer() const;

  Result<RemoteRegionId> import_region(const RegionDescriptor& descriptor) {
    return imports_->import(descriptor);
  }
  Status wait_imported(RemoteRegionId id, std::chrono::nanoseconds timeout) const {
    return imports_->wait(id, timeout);
  }

  /// Checks the lists and starts them, or parks them until the peer's word is there.
  std::shared_ptr<TransferState> transfer(Operation operation, std::span<const LocalSpan> local,
                                          std::span<const RemoteSpan> remote, const PostOptions& options);

  /// Null while a remote region waits for the peer's word.
  Result<std::shared_ptr<const SegmentList>> build(Operation operation, std::span<const LocalSpan> local,
                                                   std::span<const RemoteSpan> remote) {
    return build(operation, local, remote, {});
  }

  /// Builds `list` to `remote` as soon as the peer's word is there, so that its first post need not.
  void build_later(const std::shared_ptr<PreparedList>& list, std::span<const RemoteSpan> remote);

  /// Posts a list that `build` made.
  std::shared_ptr<TransferState> post(const std::shared_ptr<const SegmentList>& list,
                                      const PostOptions& options);

  std::shared_ptr<TransferState> send(std::span<const LocalSpan> message);
  std::shared_ptr<TransferState> receive(std::span<const LocalSpan> into);
  std::shared_ptr<TransferState> notify(std::string_view payload);
  std::vector<std::string> take_notifications() { return notifications_->take(); }

  std::vector<Route> routes() const { return lanes_->router()->routes(); }
  Result<Explanation> explain(RegionId local, RemoteRegionId remote) const;
  Stats stats() const;

  Status close(std::chrono::nanoseconds timeout);

  /// Says goodbye and ends everything now; `closed` follows.
  void abort(const Error& error);

 private:
  struct Parked {
    Operation operation;
    std::vector<LocalSpan> local;
    std::vector<RemoteSpan> remote;
    PostOptions options;
    std::shared_ptr<const Gate> gate;
    std::shared_ptr<TransferState> state;
    HeldRegions held{};
  };

  Connection(std::shared_ptr<Context> context, ConnectionId id, Role role, Observer observer);
  void wire_up();
  Session::Handlers handlers(Clock::time_point deadline);
  void on_opened(const SessionPeer& peer, Clock::time_point deadline);
  void on_message(wire::Message message);
  Status dispatch(wire::Message& message);
  void on_bye(const wire::Bye& bye);
  void on_lanes_changed();
  void watch_for_end();
  void end(const Error& error);
  std::shared_ptr<Session> session() const;
  void say(const wire::Message& message);
  void close_session(Error reason);

  /// Before the state is handed out; a caller that waits for a parked transfer sleeps.
  void let_waiter_assist(const SegmentList& list, TransferState& state,
                         const std::shared_ptr<Slot>& started) const;

  /// The channel on which all of it was started on this thread, if it was.
  std::shared_ptr<Slot> launch(const std::shared_ptr<const SegmentList>& list,
                               const std::shared_ptr<TransferState>& state, const PostOptions& options,
                               std::shared_ptr<const Gate> gate);
  void finish(const SegmentList& list, const std::shared_ptr<TransferState>& state,
              const PostOptions& options, Status status);
  Status enter(const SegmentList& list);
  static void leave(const SegmentList& list);
  Result<std::shared_ptr<const SegmentList>> build(Operation operation, std::span<const LocalSpan> local,
                                                   std::span<const RemoteSpan> remote,
                                                   const HeldRegions& held);
  void park(std::shared_ptr<Parked> parked);
  void hold(Parked& parked) const;
  std::shared_ptr<Parked> take_parked(const TransferState& state);
  void start_parked(const TransferState& state);
  Status refusal() const P2P_REQUIRES(mutex_);
  bool drained() const;
  void changed();
  void tell_watchers();
  Result<RemoteSpan> import_receive(const wire::ReceiveSpan& span);

  const std::shared_ptr<Context> context_;
  const ConnectionId id_;
  const Role role_;
  const Observer observer_;
  std::shared_ptr<Lanes> lanes_;
  std::shared_ptr<Imports> imports_;
  std::shared_ptr<Messages> messages_;
  std::shared_ptr<Notifications> notifications_;
  std::optional<Reactor::TimerId> timer_;  // reactor's thread only

  std::atomic<ConnectionState> state_{ConnectionState::kConnecting};
  std::atomic<std::uint32_t> changes_{0};  // futex: bumped when state, drain or bye may have changed
  std::atomic<std::uint32_t> under_way_{0};

  mutable Mutex mutex_;
  std::shared_ptr<Session> session_ P2P_GUARDED_BY(mutex_);
  Error error_ P2P_GUARDED_BY(mutex_);  // why it is not usable, once it is not
  SessionPeer peer_ P2P_GUARDED_BY(mutex_);
  bool bye_said_ P2P_GUARDED_BY(mutex_) = false;
  bool bye_heard_ P2P_GUARDED_BY(mutex_) = false;
  std::unordered_map<const TransferState*, std::shared_ptr<Parked>> parked_ P2P_GUARDED_BY(mutex_);
  std::vector<std::function<void()>> watchers_ P2P_GUARDED_BY(mutex_);

  std::atomic<std::uint64_t> started_{0}, completed_{0}, failed_{0}, written_{0}, read_{0};
};

}  // namespace p2p::engine
