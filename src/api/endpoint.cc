// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "p2p/endpoint.h"

#include <functional>
#include <utility>

#include "api/latency_rows.h"
#include "api/metric_sources.h"
#include "api/metrics_listing.h"
#include "base/background.h"
#include "base/callback.h"
#include "base/error.h"
#include "base/log.h"
#include "base/thread.h"
#include "engine/endpoint.h"
#include "engine/listen/own_address.h"
#include "engine/memory/local_copy.h"

namespace p2p {
namespace {

/// See src/api/connection.cc.
bool is_left(const engine::Endpoint& endpoint) { return !endpoint.context().regions->check_process(); }

/// Ends endpoints that were let go of in a callback, whose thread their end waits for.
class LateEnds {
 public:
  /// At the end of the process, which may come in a callback too.
  ~LateEnds() {
    if (in_callback() || birthplace_.left()) static_cast<void>(thread_.release());
  }

  static LateEnds& of_process() {
    static LateEnds ends;
    return ends;
  }

  bool add(std::function<void()> end) { return thread_->post(std::move(end)); }

 private:
  const Birthplace birthplace_;
  std::unique_ptr<Background> thread_ = std::make_unique<Background>("p2p-end");
};

void end_later(std::unique_ptr<engine::Endpoint> endpoint, std::unique_ptr<MetricsListing> listing) {
  // Tasks are copyable. If it is dropped, the listing, which reads from the endpoint, ends first all the
  // same.
  struct Ending {
    std::unique_ptr<engine::Endpoint> endpoint;
    std::unique_ptr<MetricsListing> listing;
  };
  const auto ending = std::make_shared<Ending>(std::move(endpoint), std::move(listing));
  const auto end = [ending] {
    ending->listing.reset();
    ending->endpoint.reset();
  };
  if (LateEnds::of_process().add(end)) return;
  static_cast<void>(ending->listing.release());
  static_cast<void>(ending->endpoint.release());
  log(LogLevel::kError, "an endpoint that was let go of in a callback stays: there is no thread to end it");
}

}  // namespace

Endpoint::Endpoint(std::unique_ptr<engine::Endpoint> endpoint)
    : endpoint_(std::move(endpoint)), sources_(std::make_shared<MetricSources>()) {}
Endpoint::Endpoint(Endpoint&&) noexcept = default;
Endpoint& Endpoint::operator=(Endpoint&& other) noexcept {
  if (this != &other) {
    const Endpoint old(std::move(*this));
    endpoint_ = std::move(other.endpoint_);
    sources_ = std::move(other.sources_);
    listing_ = std::move(other.listing_);
  }
  return *this;
}

Endpoint::~Endpoint() {
  if (!endpoint_) return;
  // In a forked process there are no threads to join, and to close would send messages on the parent's
  // sockets: the endpoint is left alone.
  if (is_left(*endpoint_)) {
    static_cast<void>(listing_.release());
    static_cast<void>(endpoint_.release());
  } else if (in_callback()) {
    end_later(std::move(endpoint_), std::move(listing_));
  }
}

Result<Endpoint> Endpoint::create(const Options& options) {
  auto endpoint = engine::Endpoint::create(options, builtin_transports());
  if (!endpoint) return tl::unexpected(endpoint.error());
  Endpoint made(std::move(*endpoint));
  auto listing = MetricsListing::make(options, *made.endpoint_, made.sources_);
  if (!listing) return tl::unexpected(listing.error());
  made.listing_ = std::move(*listing);
  return made;
}

Result<std::string> Endpoint::announced_address(const Options& options) {
  return engine::announced_address(options);
}

std::string Endpoint::address() const { return endpoint_->address(); }
std::uint16_t Endpoint::port() const { return endpoint_->port(); }
Incarnation Endpoint::incarnation() const { return endpoint_->context().regions->incarnation(); }
void Endpoint::set_note(std::string note) {
  if (!is_left(*endpoint_)) endpoint_->set_note(std::move(note));
}

Result<MemoryRegion> Endpoint::register_memory(void* data, std::size_t size, const RegionOptions& options) {
  return endpoint_->register_memory(data, size, options);
}

Result<MemoryRegion> Endpoint::register_memory(const void* data, std::size_t size, RegionOptions options) {
  options.read_only = true;
  return endpoint_->register_memory(const_cast<void*>(data), size, options);
}

Result<std::vector<std::shared_ptr<MemoryRegion>>> Endpoint::cover(std::span<LocalSpan> spans,
                                                                   bool read_only) {
  return endpoint_->cover(spans, read_only);
}

Result<Digest> Endpoint::digest(std::span<const LocalSpan> spans) const {
  const engine::Context& context = endpoint_->context();
  return context.digests->start(*context.regions, spans);
}

Status Endpoint::gather(std::span<const LocalSpan> from, std::span<std::byte> into) const {
  const engine::Context& context = endpoint_->context();
  return engine::gather(*context.regions, context.devices->staging(), from, into);
}

Status Endpoint::scatter(std::span<const std::byte> from, std::span<const LocalSpan> into) const {
  const engine::Context& context = endpoint_->context();
  return engine::scatter(*context.regions, context.devices->staging(), from, into);
}

Connection Endpoint::connect_async(const std::string& host, std::uint16_t port,
                                   std::optional<std::chrono::nanoseconds> timeout,
                                   std::optional<std::string> note) {
  const auto patience = timeout.value_or(endpoint_->context().options.connect_timeout);
  return Connection(endpoint_->connect(host, port, patience, std::move(note)));
}

Result<Connection> Endpoint::connect(const std::string& host, std::uint16_t port,
                                     std::optional<std::chrono::nanoseconds> timeout,
                                     std::optional<std::string> note) {
  const auto patience = timeout.value_or(endpoint_->context().options.connect_timeout);
  const Connection connection = connect_async(host, port, patience, std::move(note));
  // The session ends at the deadline by itself; the second more lets its error arrive here.
  const Status open = connection.wait_open(patience + std::chrono::seconds(1));
  if (open) return connection;
  static_cast<void>(connection.close(std::chrono::nanoseconds::zero()));
  return fail(open.error().code, "connect to {}:{}: {}", host, port, open.error().message);
}

Result<Connection> Endpoint::accept(std::chrono::nanoseconds timeout) {
  auto connection = endpoint_->accept(timeout);
  if (!connection) return tl::unexpected(connection.error());
  return Connection(std::move(*connection));
}

std::uint64_t Endpoint::wait_for_peer(std::uint64_t seen, std::chrono::nanoseconds timeout) const {
  return endpoint_->wait_for_peer(seen, timeout);
}

void Endpoint::close(std::chrono::nanoseconds patience) {
  if (!is_left(*endpoint_)) endpoint_->close(patience);
}

std::vector<Connection> Endpoint::connections() const {
  std::vector<Connection> connections;
  if (is_left(*endpoint_)) return connections;
  for (auto& connection : endpoint_->connections()) connections.emplace_back(std::move(connection));
  return connections;
}

std::vector<TransportStatus> Endpoint::transports() const {
  std::vector<TransportStatus> rows;
  for (const auto& slot : endpoint_->context().transports()) {
    rows.push_back({.name = std::string(slot.transport->name()), .reason = slot.unusable.value_or("")});
  }
  return rows;
}

Result<AddedMetrics> Endpoint::add_metrics(std::vector<MetricFamily> families, MetricFunction function) {
  auto source = MetricSource::make(std::move(families), std::move(function));
  if (!source) return tl::unexpected(std::move(source.error()));
  if (!is_left(*endpoint_)) sources_->add(*source);
  return AddedMetrics(std::move(*source));
}

Stats Endpoint::stats() const { return is_left(*endpoint_) ? Stats() : endpoint_->stats(); }
std::vector<Latency> Endpoint::latencies() const {
  return is_left(*endpoint_) ? std::vector<Latency>() : with_any(endpoint_->latencies());
}

}  // namespace p2p
