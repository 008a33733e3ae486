// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/fork.h"
#include "base/mutex.h"
#include "base/process_id.h"
#include "base/unique_fd.h"
#include "drivers/socket/address.h"
#include "engine/channels/context.h"
#include "engine/connection.h"
#include "engine/connections.h"
#include "engine/listen/credential_files.h"
#include "engine/listen/listener.h"
#include "engine/memory/implicit_regions.h"
#include "p2p/memory.h"
#include "p2p/options.h"
#include "p2p/region_options.h"
#include "p2p/result.h"
#include "transport/registry.h"

namespace p2p::engine {

/// What is behind p2p::Endpoint: owns the context that connections share (threads, transports, regions), the
/// listener and the connections. Thread-safe.
class Endpoint {
 public:
  /// Starts the threads and opens the port. See p2p::Endpoint::create for the errors.
  static Result<std::unique_ptr<Endpoint>> create(const Options& options, const TransportRegistry& registry);

  /// Closes every connection and waits for that: twice the keepalive time and a second at most. Not in a
  /// callback, which it may have to wait for.
  ~Endpoint();

  /// As in p2p::Endpoint.
  void close(std::chrono::nanoseconds patience);

  const std::string& address() const { return address_; }
  std::uint16_t port() const { return port_; }

  Context& context() const { return *context_; }

  /// These two as in p2p::Endpoint.
  Result<MemoryRegion> register_memory(void* data, std::size_t size, const RegionOptions& options = {});
  Result<std::vector<std::shared_ptr<MemoryRegion>>> cover(std::span<LocalSpan> spans, bool read_only) {
    return (read_only ? implicit_read_only_ : implicit_).cover(spans);
  }

  /// Goes to peers with each handshake that begins from now on.
  void set_note(std::string note);

  /// Once the endpoint closes, one that has ended. `note` if given, else that of set_note. Does not block.
  std::shared_ptr<Connection> connect(const std::string& host, std::uint16_t port,
                                      std::chrono::nanoseconds timeout, std::optional<std::string> note);

  /// Peers can connect: it was not closed.
  bool listens() const { return !connections_.closing(); }

  /// The next that a peer has opened; kTimedOut if there is none in time.
  Result<std::shared_ptr<Connection>> accept(std::chrono::nanoseconds timeout);
  std::uint64_t wait_for_peer(std::uint64_t seen, std::chrono::nanoseconds timeout) {
    return connections_.wait_for_peer(seen, deadline_after(timeout));
  }
  std::vector<std::shared_ptr<Connection>> connections() const { return connections_.all(); }

  /// Sums of the open connections and of those that have ended.
  Stats stats() const;

  /// Likewise, a row for each transport and direction, also for those that have moved nothing.
  std::vector<Latency> latencies() const { return connections_.latencies(); }

 private:
  Endpoint() = default;
  Status start_threads();
  Status listen();
  void close_connections(std::chrono::steady_clock::time_point deadline);
  Status open_port(std::vector<socket::Address> wanted, std::uint16_t first, std::uint16_t last);
  void count_until_open(Connection& connection, Strangers::Id stranger);
  Strangers::Drop welcome(UniqueFd socket, Strangers::Id stranger);
  SessionConfig session_config(std::optional<std::string> note) const;

  const EngineUse use_;
  const std::shared_ptr<Context> context_ = std::make_shared<Context>();
  std::unique_ptr<CredentialFiles> credentials_;
  Incarnation incarnation_ = 0;
  std::optional<ProcessId> process_;  // none where /proc cannot be read
  std::string address_;
  std::uint16_t port_ = 0;
  std::shared_ptr<Listener> listener_;
  Connections connections_{context_};
  ImplicitRegions implicit_{
      [this](std::byte* data, std::size_t size) { return register_memory(data, size); }};
  ImplicitRegions implicit_read_only_{[this](std::byte* data, std::size_t size) {
    return register_memory(data, size, {.read_only = true, .peers = {}});
  }};

  mutable Mutex mutex_;
  std::string note_ P2P_GUARDED_BY(mutex_);
};

}  // namespace p2p::engine
