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

#include "p2p/added_metrics.h"
#include "p2p/api.h"
#include "p2p/connection.h"
#include "p2p/digest.h"
#include "p2p/memory.h"
#include "p2p/options.h"
#include "p2p/region_options.h"
#include "p2p/result.h"
#include "p2p/stats.h"

namespace p2p {

namespace engine {
class Endpoint;
}
class MetricSources;
class MetricsListing;

/// All that this process needs to move bytes: transports, regions, engine threads, a listener.
/// Owns them; its end closes every connection (transfers under way end as cancelled) within the keepalive
/// time. Movable; every call may come from any thread. Several endpoints may live in one process. In a
/// callback the end does not wait: a thread of its own does it, once the callbacks under way have returned.
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
  /// is found from the pointer. The same and overlapping ranges may be registered any number of times,
  /// and ranges of no bytes, null included.
  /// Fails here, with the reason, if no transport can move this memory and keep to the options.
  Result<MemoryRegion> register_memory(void* data, std::size_t size, const RegionOptions& options = {});

  /// The same of memory that is not to be written: peers may only read.
  Result<MemoryRegion> register_memory(const void* data, std::size_t size, RegionOptions options = {});

  /// Sets the region of each span, for memory that was not registered. Regions are made on first use, one for
  /// spans that touch each other, and kept until the endpoint ends. If there are more than 4096, or than one
  /// call needs, the least recently used one goes; one whose device memory was freed goes when its address is
  /// used again. A region's descriptors become invalid with it. Hold what this returns until the transfers
  /// with these spans have been posted. `read_only`: the regions are others than those without it, and peers
  /// that get a descriptor may only read.
  Result<std::vector<std::shared_ptr<MemoryRegion>>> cover(std::span<LocalSpan> spans,
                                                           bool read_only = false);

  /// Starts the digest (p2p/digest.h) of registered memory, as if the spans lay in a row. Memory of one GPU
  /// is hashed there, by a kernel on a stream of its own: what the program's streams are to write must be
  /// there by now. Anything else is hashed by the calling thread before this returns. The memory must stay as
  /// it is until the digest is done. kNotFound, kOutOfRange: spans that are not (any more) of a region.
  Result<Digest> digest(std::span<const LocalSpan> spans) const;

  /// Copies registered memory, of the host or of GPUs, as if the spans lay in a row, into as many bytes of
  /// the host, or those bytes there, before it returns. Memory of GPUs goes by streams of the endpoint: what
  /// the program's are to do with it must be done by now. kNotFound, kOutOfRange: as `digest`.
  /// kInvalidArgument: the two are not of one size. kSystem: a GPU has failed, or host memory has become bad.
  Status gather(std::span<const LocalSpan> from, std::span<std::byte> into) const;
  Status scatter(std::span<const std::byte> from, std::span<const LocalSpan> into) const;

  /// Connects and waits until the connection is open. `host` is read by HostPort::parse; a port that it names
  /// must be `port`. The peer gets `note`, or else that of `set_note`.
  Result<Connection> connect(const std::string& host, std::uint16_t port,
                             std::optional<std::chrono::nanoseconds> timeout = std::nullopt,
                             std::optional<std::string> note = std::nullopt);

  /// Starts to connect and returns at once; see Connection::wait_open and status.
  Connection connect_async(const std::string& host, std::uint16_t port,
                           std::optional<std::chrono::nanoseconds> timeout = std::nullopt,
                           std::optional<std::string> note = std::nullopt);

  /// The next connection that a peer opened; kTimedOut if there is none in time. Peers are served also if
  /// this is never called.
  Result<Connection> accept(std::chrono::nanoseconds timeout);

  /// How many connections peers have opened so far. Returns at once if that is not `seen` (0 at first), else
  /// when another one comes or `timeout` is over. Takes none of them: `accept` has them without a wait.
  std::uint64_t wait_for_peer(std::uint64_t seen, std::chrono::nanoseconds timeout) const;

  /// Ends every connection, as the end of the endpoint does, but waits for `patience` at most until the peers
  /// have heard of it. Neither the endpoint's end nor a region that is dropped later waits any more; the log
  /// warns if a peer may still write to its memory.
  void close(std::chrono::nanoseconds patience);

  /// Connections that are connecting or open, accepted ones included.
  std::vector<Connection> connections() const;

  /// Every transport that the options allow, in order of preference.
  std::vector<TransportStatus> transports() const;

  Stats stats() const;

  /// A row for each transport and direction that has moved anything, ended connections included.
  std::vector<Latency> latencies() const;

  /// Adds metrics of the program's own to this endpoint's, wherever these are read: `openmetrics`, and the
  /// place that options name (docs/watching.md). `function` says their values for each page. What is not
  /// there after half a second, what it throws, and samples past 4096 or that do not fit the families are
  /// left out, and the log warns. kInvalidArgument: no name of a metric or label, or one that the engine has;
  /// more than 64 families.
  Result<AddedMetrics> add_metrics(std::vector<MetricFamily> families, MetricFunction function);

 private:
  friend P2P_API std::string openmetrics(const Endpoint& endpoint);

  explicit Endpoint(std::unique_ptr<engine::Endpoint> endpoint);
  std::unique_ptr<engine::Endpoint> endpoint_;
  std::shared_ptr<MetricSources> sources_;   // what programs have added to its metrics
  std::unique_ptr<MetricsListing> listing_;  // ends first; null: none
};

}  // namespace p2p
