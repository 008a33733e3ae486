// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "p2p/api.h"
#include "p2p/connection.h"
#include "p2p/memory.h"
#include "p2p/options.h"
#include "p2p/region_options.h"
#include "p2p/result.h"
#include "p2p/stats.h"

namespace p2p {

namespace engine {
class Endpoint;
}
class MetricsListing;

/// All that this process needs to move bytes: transports, regions, engine threads, a listener.
/// Owns them; its end closes every connection (transfers under way end as cancelled) within the keepalive
/// time. Movable; every call may come from any thread. Several endpoints may live in one process.
class P2P_API Endpoint {
 public:
  static Result<Endpoint> create(const Options& options);

  Endpoint(Endpoint&&) noexcept;
  Endpoint& operator=(Endpoint&&) noexcept;
  ~Endpoint();

  /// The address to give to peers, numeric; never a wildcard.
  std::string address() const;
  std::uint16_t port() const;
  Incarnation incarnation() const;

  /// The address that an endpoint with these options would give to peers. Listens nowhere, sends nothing.
  static Result<std::string> announced_address(const Options& options);

  /// The bytes that peers get as `Peer::note` in handshakes from now on. At most 64 KiB.
  void set_note(std::string note);

  /// Makes `size` bytes at `data` usable in transfers and, with its descriptor, by peers. The kind of memory
  /// is found from the pointer. The same and overlapping ranges may be registered any number of times.
  /// Fails here, with the reason, if no transport can move this memory and keep to the options.
  Result<MemoryRegion> register_memory(void* data, std::size_t size, const RegionOptions& options = {});

  /// Names a region for each span, for memory that nobody registered: regions are made on first use and kept
  /// until the endpoint ends, spans that touch each other as one. Of more than 4096, or than one call needs,
  /// the one goes whose last use is the longest ago, and one whose device memory was freed goes when its
  /// address is named again; its descriptors die with it. What comes back is to be held until the transfers
  /// with these spans have been posted.
  Result<std::vector<std::shared_ptr<MemoryRegion>>> cover(std::span<LocalSpan> spans);

  /// Connects and waits until the connection is open. The peer gets `note`, or else that of `set_note`.
  Result<Connection> connect(const std::string& host, std::uint16_t port,
                             std::optional<std::chrono::nanoseconds> timeout = std::nullopt,
                             std::optional<std::string> note = std::nullopt);

  /// Starts to connect and returns at once; the connection tells how it went.
  Connection connect_async(const std::string& host, std::uint16_t port,
                           std::optional<std::chrono::nanoseconds> timeout = std::nullopt,
                           std::optional<std::string> note = std::nullopt);

  /// The next connection that a peer opened. Peers are served whether or not this is ever called.
  Result<Connection> accept(std::chrono::nanoseconds timeout);

  /// How many connections peers have opened so far: at once if that is not `seen` (0 at first), else once
  /// another has come or the time has passed. Takes none: what has come is there for `accept` without a wait.
  std::uint64_t wait_for_peer(std::uint64_t seen, std::chrono::nanoseconds timeout) const;

  /// Connections that are connecting or open, accepted ones included.
  std::vector<Connection> connections() const;

  /// Every transport that the options allow, in order of preference.
  std::vector<TransportStatus> transports() const;

  Stats stats() const;

  /// Of each transport and direction that has any; connections that have ended included.
  std::vector<Latency> latencies() const;

 private:
  friend P2P_API std::string openmetrics(const Endpoint& endpoint);

  explicit Endpoint(std::unique_ptr<engine::Endpoint> endpoint);
  std::unique_ptr<engine::Endpoint> endpoint_;
  std::unique_ptr<MetricsListing> listing_;  // ends first; null: none
};

}  // namespace p2p
