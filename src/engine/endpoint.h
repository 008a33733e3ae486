// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "drivers/socket/address.h"
#include "engine/connection.h"
#include "engine/context.h"
#include "engine/credential_files.h"
#include "engine/listener.h"
#include "p2p/options.h"
#include "p2p/result.h"
#include "transport/registry.h"

namespace p2p::engine {

/// See p2p::Endpoint::announced_address.
Result<std::string> announced_address(const Options& options);

/// Owns the context of all connections, the listener and the connections themselves. Thread-safe.
class Endpoint {
 public:
  static Result<std::unique_ptr<Endpoint>> create(const Options& options, const TransportRegistry& registry);

  /// Closes every connection and waits for that, at most a little over the keepalive time.
  ~Endpoint();

  const std::string& address() const { return address_; }
  std::uint16_t port() const { return port_; }
  Context& context() const { return *context_; }

  void set_note(std::string note);
  std::shared_ptr<Connection> connect(const std::string& host, std::uint16_t port,
                                      std::chrono::nanoseconds timeout, std::optional<std::string> note);
  Result<std::shared_ptr<Connection>> accept(std::chrono::nanoseconds timeout);
  std::vector<std::shared_ptr<Connection>> connections() const;

  /// Sums of the open connections and of those that have ended.
  Stats stats() const;

  /// One for each transport and direction, also where there is none. Likewise.
  std::vector<Latency> latencies() const;

 private:
  Endpoint() = default;
  Status load_transports(const TransportRegistry& registry);
  Status find_required(const TransportRegistry& registry, const TransportList& list);
  Status start_threads();
  Status listen();
  Status open_port(const std::vector<socket::Address>& wanted);
  Strangers::Drop welcome(UniqueFd socket, Strangers::Id stranger);
  std::shared_ptr<Connection> add(Role role, std::optional<Strangers::Id> stranger = std::nullopt);
  SessionConfig session_config(std::optional<std::string> note) const;
  void opened(const std::shared_ptr<Connection>& connection, Role role);
  bool keep_for_accept(const std::shared_ptr<Connection>& connection);
  void closed(const std::shared_ptr<Connection>& connection);
  std::vector<std::shared_ptr<Connection>> forget_ended() P2P_REQUIRES(mutex_);

  const std::shared_ptr<Context> context_ = std::make_shared<Context>();
  std::unique_ptr<CredentialFiles> credentials_;
  Incarnation incarnation_ = 0;
  std::string address_;
  std::uint16_t port_ = 0;
  std::shared_ptr<Listener> listener_;
  RateLimitedLog refusals_{LogLevel::kWarning};

  mutable Mutex mutex_;
  std::string note_ P2P_GUARDED_BY(mutex_);
  std::uint64_t next_id_ P2P_GUARDED_BY(mutex_) = 0;
  std::map<ConnectionId, std::shared_ptr<Connection>> connections_ P2P_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<Connection>> accepted_ P2P_GUARDED_BY(mutex_);
  Stats ended_ P2P_GUARDED_BY(mutex_);  // and what is of the endpoint alone
  std::vector<Latency> ended_latencies_ P2P_GUARDED_BY(mutex_);
  bool closing_ P2P_GUARDED_BY(mutex_) = false;
  std::atomic<std::uint32_t> changes_{0};  // futex: bumped when connections_ or accepted_ changed
};

}  // namespace p2p::engine
