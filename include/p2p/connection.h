// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "p2p/api.h"
#include "p2p/memory.h"
#include "p2p/result.h"
#include "p2p/stats.h"
#include "p2p/strided.h"
#include "p2p/transfer.h"

namespace p2p {

namespace engine {
class Connection;
}

/// Names a connection within its endpoint. Starts at 0.
enum class ConnectionId : std::uint64_t {};

/// What the peer said about itself in the handshake. Proven only if keys or certificates are set.
struct Peer {
  std::string address;  ///< numeric, of the control connection
  std::uint16_t port = 0;
  Incarnation incarnation = 0;
  std::string note;  ///< the bytes that its application gave to `connect` or `set_note`

  /// The name of the key that the dialling side used, or the common name in the peer's certificate. Empty if
  /// the key has no name, or without keys and certificates.
  std::string identity;
};

enum class ConnectionState { kConnecting, kOpen, kClosing, kClosed };

/// A handle on a live session with one peer. Either side may use every call, from any number of threads.
/// Copies share the session; dropping them does not close it (`close` or the endpoint's end does).
///
/// Calls that start a transfer never block and never fail themselves: every error, also of the arguments, is
/// the outcome of the transfer. While the connection is being made, transfers wait for it.
class P2P_API Connection {
 public:
  Connection() = default;
  explicit Connection(std::shared_ptr<engine::Connection> connection);

  bool valid() const { return connection_ != nullptr; }
  ConnectionId id() const;
  ConnectionState state() const;

  /// Success while connecting or open, else why it ended.
  Status status() const;

  /// The peer has said that it ends the connection, as it does when it closes it or its endpoint ends.
  bool closed_by_peer() const;

  /// Waits until the handshake and the channels are done; kTimedOut may leave it connecting: see `state`.
  Status wait_open(std::chrono::nanoseconds timeout) const;

  /// Runs `callback` when the connection has opened and when it has ended, if that is still to come; `state`
  /// says which. It runs on an engine thread and must not block.
  void on_change(std::function<void()> callback) const;

  /// Known once open.
  Peer peer() const;

  /// Makes a peer's region usable here; idempotent. kPermissionDenied for a descriptor of another
  /// incarnation (once open). Some transports must ask the peer first: that runs in the background, and
  /// transfers with the region wait for it. `again`: also where the region has failed or ended before, since
  /// its owner may have registered it again (`RegionOptions::again`); the id is another then.
  Result<RemoteRegionId> import_region(const RegionDescriptor& descriptor, bool again = false) const;

  /// Waits until an imported region can be used, as the first transfer with it would; the reason if it cannot
  /// be used. kTimedOut if its owner has not answered within `timeout`.
  Status wait_imported(RemoteRegionId region, std::chrono::nanoseconds timeout) const;

  /// Moves each local span to the remote span of the same index. Sizes must agree pair by pair.
  Transfer write(std::span<const LocalSpan> local, std::span<const RemoteSpan> remote,
                 const PostOptions& options = {}) const;
  Transfer write(const LocalSpan& local, const RemoteSpan& remote, const PostOptions& options = {}) const;

  /// The reverse: each remote span into the local span of the same index.
  Transfer read(std::span<const LocalSpan> local, std::span<const RemoteSpan> remote,
                const PostOptions& options = {}) const;
  Transfer read(const LocalSpan& local, const RemoteSpan& remote, const PostOptions& options = {}) const;

  /// Moves the bytes of each strided memory to that of the same index, in their order. Bytes must agree pair
  /// by pair, blocks and rows need not: one side may be a single block. kOutOfRange, kInvalidArgument: memory
  /// beyond the region, blocks that overlap where they are to be written, more of them than
  /// Strides::kMostBlocks.
  Transfer write(std::span<const LocalStrided> local, std::span<const RemoteStrided> remote,
                 const PostOptions& options = {}) const;
  Transfer read(std::span<const LocalStrided> local, std::span<const RemoteStrided> remote,
                const PostOptions& options = {}) const;

  /// Checks, merges and keeps a list for many posts.
  Result<PreparedTransfer> prepare_write(std::span<const LocalSpan> local,
                                         std::span<const RemoteSpan> remote) const;
  Result<PreparedTransfer> prepare_read(std::span<const LocalSpan> local,
                                        std::span<const RemoteSpan> remote) const;
  Result<PreparedTransfer> prepare_write(std::span<const LocalStrided> local,
                                         std::span<const RemoteStrided> remote) const;
  Result<PreparedTransfer> prepare_read(std::span<const LocalStrided> local,
                                        std::span<const RemoteStrided> remote) const;

  /// The n-th send of one side meets the n-th recv of the other. With equally many spans on both sides they
  /// meet span by span; otherwise the message is a stream of bytes that fills the receive from its start.
  Transfer send(std::span<const LocalSpan> message) const;
  Transfer send(const LocalSpan& message) const;

  /// Receives a message of at most the spans' size; `Transfer::bytes` says how long it was. A longer message
  /// fails on both sides with kMessageTooLong.
  Transfer recv(std::span<const LocalSpan> into) const;
  Transfer recv(const LocalSpan& into) const;

  /// Sends bytes to the peer's application. Done when the peer's engine has all of them. It keeps at most its
  /// `Options::notifications` until its application takes some: further ones wait here. kMessageTooLong for
  /// more bytes than half of the peer's `Options::notification_bytes`.
  Transfer notify(std::string_view payload) const;

  /// Takes all notifications that have come, oldest first.
  std::vector<std::string> take_notifications() const;

  /// Runs `callback` after each notification that comes from now on; `take_notifications` has it, and those
  /// that came before. It runs on an engine thread and must not block. All that are given are called.
  void on_notification(std::function<void()> callback) const;

  /// The route for each pair of kinds of memory, for regions registered without RegionOptions.
  std::vector<Route> routes() const;

  /// Which transport moves bytes between the two regions, and why no preferred one does. kNotFound if one of
  /// them is unknown; kUnavailable while the peer has not answered about its own (see wait_imported).
  Result<Explanation> explain(RegionId local, RemoteRegionId remote) const;

  Stats stats() const;

  /// A row for each transport and direction that has moved anything.
  std::vector<Latency> latencies() const;

  /// Lets transfers under way finish, tells the peer and closes. What is still under way after `timeout` is
  /// cancelled. Idempotent. Success if all had finished.
  Status close(std::chrono::nanoseconds timeout) const;

 private:
  std::shared_ptr<engine::Connection> connection_;
};

}  // namespace p2p
