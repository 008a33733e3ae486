// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/endpoint.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/futex.h"
#include "base/log.h"
#include "base/underlying.h"
#include "drivers/crypto/crypto.h"
#include "drivers/socket/default_address.h"
#include "drivers/socket/socket.h"
#include "engine/announcement.h"

namespace p2p::engine {
namespace {

using Clock = std::chrono::steady_clock;

// Ports that are tried until one is free at both addresses.
constexpr int kPortTries = 8;

// Connections that ended and still wait to be accepted.
constexpr std::ptrdiff_t kMaxEnded = 128;

// One for each core, and of many cores one for every two: the other half is the peer's on this host, or the
// program's.
unsigned default_workers() {
  const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
  return std::min(cores, std::clamp(cores / 2, 8U, 16U));
}

bool is_wildcard(const std::string& address) { return address == "0.0.0.0" || address == "::"; }

// The one by which peers reach this host if nothing else is announced.
Result<std::string> own_address(const Options& options) {
  if (!options.listen_address.empty() && !is_wildcard(options.listen_address)) return options.listen_address;
  return socket::default_address({.interfaces = options.announce_interfaces, .near = options.announce_near});
}

// One or two: strangers are let in everywhere only if a key keeps them out, and peers of this host may use
// its loopback address.
std::vector<std::string> listen_addresses(const Options& options, const std::string& own, bool has_key) {
  const bool v4 = own.find(':') == std::string::npos;
  const std::string& wanted = options.listen_address;
  if (wanted.empty() && has_key)
    return v4 ? std::vector<std::string>{"0.0.0.0", "::"} : std::vector<std::string>{"::", "0.0.0.0"};
  if (is_wildcard(wanted)) return {wanted};
  const auto address = socket::Address::parse(own, 0);
  if (!address || address->is_loopback() || address->is_link_local()) return {own};
  return {own, v4 ? "127.0.0.1" : "::1"};
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
  sum.pieces_queued += one.pieces_queued;
}

}  // namespace

Result<std::string> announced_address(const Options& options) {
  if (options.announce.empty()) return own_address(options);
  return Announcement::parse(options.announce).map([](const Announcement& one) { return one.host; });
}

Result<std::unique_ptr<Endpoint>> Endpoint::create(const Options& options,
                                                   const TransportRegistry& registry) {
  std::unique_ptr<Endpoint> endpoint(new Endpoint);
  endpoint->context_->options = options;
  if (Status read = move_into(endpoint->credentials_, CredentialFiles::open(options)); !read) {
    return tl::unexpected(read.error());
  }
  endpoint->context_->trace = Trace::of_process(options);
  std::array<std::byte, sizeof(Incarnation)> drawn{};
  if (Status random = crypto::random_bytes(drawn); !random) return tl::unexpected(random.error());
  std::memcpy(&endpoint->incarnation_, drawn.data(), sizeof endpoint->incarnation_);
  if (Status loaded = endpoint->load_transports(registry); !loaded) return tl::unexpected(loaded.error());
  if (Status started = endpoint->start_threads(); !started) return tl::unexpected(started.error());
  if (Status listening = endpoint->listen(); !listening) return tl::unexpected(listening.error());
  return endpoint;
}

// The transports that the options allow, in their order, each with what its probe says.
Status Endpoint::load_transports(const TransportRegistry& registry) {
  const Options& options = context_->options;
  TransportList list;
  std::vector<std::string> wanted;
  wanted.reserve(options.transports.size());
  for (const std::string& word : options.transports) {
    auto name = registry.name_of(word);
    if (!name) return tl::unexpected(name.error());
    wanted.push_back(std::move(*name));
  }
  const auto load = [&](const TransportRegistry::Entry& entry) {
    TransportSlot slot{entry.make(options)};
    if (options.network_only && slot.transport->capabilities().reach != Reach::kNetwork) {
      slot.unusable = "left out: only transports that reach other hosts are wanted";
    } else if (Status usable = slot.transport->probe(); !usable) {
      slot.unusable = usable.error().message;
    }
    log(LogLevel::kDebug, "transport {}: {}", entry.name, slot.unusable.value_or("usable"));
    list.push_back(std::move(slot));
  };
  std::string known;
  for (const auto& entry : registry.entries) known += (known.empty() ? "" : ", ") + entry.name;
  for (const std::string& name : wanted) {
    const auto found = std::find_if(registry.entries.begin(), registry.entries.end(),
                                    [&](const auto& entry) { return entry.name == name; });
    if (found == registry.entries.end()) {
      return fail(ErrorCode::kInvalidArgument, "use transport '{}': there is none of that name ({})", name,
                  known);
    }
    load(*found);
  }
  for (const auto& entry : registry.entries) {
    if (std::find(wanted.begin(), wanted.end(), entry.name) != wanted.end()) continue;
    if (wanted.empty() || !options.require_transport) load(entry);
  }
  if (Status found = find_required(registry, list); !found) return found;
  if (std::ranges::none_of(list, [](const TransportSlot& slot) { return !slot.unusable; })) {
    std::string why;
    for (const TransportSlot& slot : list) {
      why += fmt::format("{}{}: {}", why.empty() ? "" : "; ", slot.transport->name(), *slot.unusable);
    }
    return fail(ErrorCode::kUnavailable, "make an endpoint: no transport can be used here ({}){}", why,
                wanted.empty() ? "" : "; without UCCL_P2P_TRANSPORT any that works is taken");
  }
  context_->regions = std::make_shared<RegionTable>(std::move(list), incarnation_, options.keepalive);
  return {};
}

Status Endpoint::find_required(const TransportRegistry& registry, const TransportList& list) {
  std::string& required = context_->options.required;
  if (required.empty()) return {};
  auto name = registry.name_of(required);
  if (!name) return tl::unexpected(std::move(name.error()));
  required = std::move(*name);
  if (std::ranges::any_of(list, [&](const auto& slot) { return slot.transport->name() == required; }))
    return {};
  return fail(ErrorCode::kInvalidArgument, "require transport '{}': it is none of those that may be used",
              required);
}

Status Endpoint::start_threads() {
  unsigned workers = context_->options.workers;
  if (workers == 0) workers = default_workers();
  for (unsigned i = 0; i < workers; ++i) {
    auto worker = Worker::start(context_->options.spin, i);
    if (!worker) return tl::unexpected(worker.error());
    context_->workers.push_back(std::move(*worker));
  }
  if (context_->options.place_threads) {
    std::vector<pthread_t> threads;
    for (const auto& worker : context_->workers) threads.push_back(worker->thread());
    context_->placement = std::make_unique<Placement>(std::move(threads));
  }
  auto reactor = Reactor::start();
  if (!reactor) return tl::unexpected(reactor.error());
  context_->reactor = std::move(*reactor);
  return {};
}

Status Endpoint::listen() {
  const Options& options = context_->options;
  Announcement announced;
  if (!options.announce.empty()) {
    auto parsed = Announcement::parse(options.announce);
    if (!parsed) return tl::unexpected(parsed.error());
    announced = std::move(*parsed);
  }
  const auto own = own_address(options);
  if (!own) return tl::unexpected(own.error());
  std::vector<socket::Address> wanted;
  for (const std::string& text : listen_addresses(options, *own, credentials_ != nullptr)) {
    const auto address = socket::Address::parse(text, options.port);
    if (!address) return tl::unexpected(address.error());
    wanted.push_back(*address);
  }
  listener_ = std::make_shared<Listener>(
      *context_->reactor,
      Listener::Settings{{options.max_strangers, options.max_strangers_of_address},
                         options.spare_descriptors,
                         options.connect_timeout},
      [this](UniqueFd socket, Strangers::Id stranger) { return welcome(std::move(socket), stranger); });
  if (Status opened = open_port(wanted); !opened) return opened;
  address_ = announced.host.empty() ? *own : announced.host;
  if (announced.port != 0) port_ = announced.port;
  context_->port = listener_;
  context_->reactor->post([this] { listener_->start(); });
  return {};
}

/// The first address must be free; the other one has the same port where that can be had.
Status Endpoint::open_port(const std::vector<socket::Address>& wanted) {
  for (int tries = 0; tries < kPortTries; ++tries) {
    listener_->discard_all();
    const auto bound = listener_->open(wanted.front());
    if (!bound) return tl::unexpected(bound.error());
    port_ = bound->port();
    if (wanted.size() == 1) return {};
    socket::Address beside = wanted.back();
    beside.set_port(port_);
    const auto second = listener_->open(beside);
    if (second) return {};
    log(LogLevel::kDebug, "nobody can connect to {}: {}", beside.describe(), second.error().message);
    if (context_->options.port != 0) return {};
  }
  return {};
}

Endpoint::~Endpoint() {
  if (!context_->reactor) return;
  // On the reactor's thread, so that no connection is accepted after the flag is up.
  context_->reactor->post([this] {
    if (listener_) listener_->close();
  });
  std::vector<std::shared_ptr<Connection>> connections;
  {
    MutexLock lock(mutex_);
    closing_ = true;
    accepted_.clear();
    for (const auto& [id, connection] : connections_) connections.push_back(connection);
  }
  const Error error{ErrorCode::kCancelled, "the endpoint was closed"};
  for (const auto& connection : connections) connection->abort(error);
  // Sessions flush for at most the keepalive time.
  const auto deadline = Clock::now() + 2 * context_->options.keepalive + std::chrono::seconds(1);
  while (Clock::now() < deadline) {
    const std::uint32_t seen = changes_.load(std::memory_order_acquire);
    {
      MutexLock lock(mutex_);
      if (connections_.empty()) break;
    }
    futex_wait(changes_, seen, deadline);
  }
  context_->imports.stop();
  context_->watch.stop();
  context_->workers.clear();  // they post to the reactor until they are gone
  context_->reactor->stop();
}

void Endpoint::set_note(std::string note) {
  MutexLock lock(mutex_);
  note_ = std::move(note);
}

SessionConfig Endpoint::session_config(std::optional<std::string> note) const {
  const Options& options = context_->options;
  SessionConfig config{incarnation_,      credentials_ ? credentials_->current() : nullptr, options.allow, {},
                       options.keepalive, std::max(options.hung, options.keepalive)};
  if (note) {
    config.introduction.note = std::move(*note);
  } else {
    MutexLock lock(mutex_);
    config.introduction.note = note_;
  }
  config.introduction.eager_bytes = static_cast<std::uint32_t>(options.eager_bytes);
  config.introduction.notifications = options.notifications;
  config.introduction.notification_bytes = options.notification_bytes;
  for (const TransportSlot& slot : context_->transports()) {
    config.introduction.transports.push_back(
        {std::string(slot.transport->name()), slot.unusable.value_or("")});
  }
  return config;
}

std::shared_ptr<Connection> Endpoint::add(Role role, std::optional<Strangers::Id> stranger) {
  if (!context_->regions->check_process()) {
    const auto ignore = [](const std::shared_ptr<Connection>&) {};
    return Connection::make(context_, ConnectionId{0}, role, {[] {}, ignore, ignore});
  }
  const auto proven = [this, stranger] {
    if (stranger) listener_->proven(*stranger);
  };
  MutexLock lock(mutex_);
  if (closing_) return nullptr;
  const ConnectionId id{next_id_++};
  auto connection =
      Connection::make(context_, id, role,
                       {proven, [this, role](const std::shared_ptr<Connection>& one) { opened(one, role); },
                        [this, proven](const std::shared_ptr<Connection>& one) {
                          proven();
                          closed(one);
                        }});
  connections_.emplace(id, connection);
  return connection;
}

/// Until it has proven itself it may be sent off for others.
Strangers::Drop Endpoint::welcome(UniqueFd socket, Strangers::Id stranger) {
  const auto connection = add(Role::kAcceptor, stranger);
  if (!connection) return nullptr;
  connection->accept(std::move(socket), session_config(std::nullopt),
                     Clock::now() + context_->options.connect_timeout);
  return [weak = std::weak_ptr(connection)](Strangers::Id) {
    if (const auto self = weak.lock()) {
      self->abort({ErrorCode::kUnavailable, "too many others connect that have not proven themselves"});
    }
  };
}

std::shared_ptr<Connection> Endpoint::connect(const std::string& host, std::uint16_t port,
                                              std::chrono::nanoseconds timeout,
                                              std::optional<std::string> note) {
  const auto connection = add(Role::kConnector);
  if (!context_->regions->check_process()) return connection;  // whose every call says so
  if (connection) connection->dial(host, port, session_config(std::move(note)), deadline_after(timeout));
  return connection;
}

Result<std::shared_ptr<Connection>> Endpoint::accept(std::chrono::nanoseconds timeout) {
  if (Status here = context_->regions->check_process(); !here) return tl::unexpected(here.error());
  const auto deadline = deadline_after(timeout);
  while (true) {
    const std::uint32_t seen = changes_.load(std::memory_order_acquire);
    {
      MutexLock lock(mutex_);
      if (!accepted_.empty()) {
        auto connection = std::move(accepted_.front());
        accepted_.pop_front();
        return connection;
      }
    }
    if (Clock::now() >= deadline) {
      return fail(ErrorCode::kTimedOut, "accept on {}:{}: nobody connected in time", address_, port_);
    }
    futex_wait(changes_, seen, deadline);
  }
}

std::vector<std::shared_ptr<Connection>> Endpoint::connections() const {
  MutexLock lock(mutex_);
  std::vector<std::shared_ptr<Connection>> connections;
  connections.reserve(connections_.size());
  for (const auto& [id, connection] : connections_) connections.push_back(connection);
  return connections;
}

Stats Endpoint::stats() const {
  MutexLock lock(mutex_);
  Stats sum = ended_;
  sum.strangers_refused = listener_->refused();
  sum.connections_waiting = accepted_.size();
  const auto [regions, bytes] = context_->regions->amount();
  sum.registered_regions = regions;
  sum.registered_bytes = bytes;
  for (const auto& [id, connection] : connections_) add_to(sum, connection->stats());
  return sum;
}

std::vector<Latency> Endpoint::latencies() const {
  MutexLock lock(mutex_);
  std::vector<Latency> sum = ended_latencies_;
  for (const auto& [id, connection] : connections_) connection->latencies().add_to(sum);
  return sum;
}

void Endpoint::opened(const std::shared_ptr<Connection>& connection, Role role) {
  if (role == Role::kAcceptor && !keep_for_accept(connection)) {
    const Error error{ErrorCode::kUnavailable, fmt::format("{} connections wait to be accepted already",
                                                           context_->options.max_unaccepted)};
    refusals_.log("a peer's connection is refused: {}", error.message);
    context_->reactor->post([connection, error] { connection->abort(error); });
  }
  changes_.fetch_add(1, std::memory_order_release);
  futex_wake_all(changes_);
}

bool Endpoint::keep_for_accept(const std::shared_ptr<Connection>& connection) {
  MutexLock lock(mutex_);
  if (accepted_.size() >= context_->options.max_unaccepted) {
    ++ended_.connections_refused;
    return false;
  }
  accepted_.push_back(connection);
  return true;
}

// What ended before anybody accepted it may still have notifications to take, but only so many are kept: an
// application that never accepts must not fill memory with them. The oldest go first.
std::vector<std::shared_ptr<Connection>> Endpoint::forget_ended() {
  const auto has_ended = [](const auto& one) { return one->state() == ConnectionState::kClosed; };
  auto ended = std::count_if(accepted_.begin(), accepted_.end(), has_ended);
  std::vector<std::shared_ptr<Connection>> forgotten;
  std::erase_if(accepted_, [&](auto& one) {
    if (!has_ended(one) || ended-- <= kMaxEnded) return false;
    forgotten.push_back(std::move(one));
    return true;
  });
  return forgotten;
}

void Endpoint::closed(const std::shared_ptr<Connection>& connection) {
  std::vector<std::shared_ptr<Connection>> forgotten;  // destroyed without the lock
  {
    MutexLock lock(mutex_);
    add_to(ended_, connection->stats());
    ended_.pieces_queued = 0;
    connection->latencies().add_to(ended_latencies_);
    connections_.erase(connection->id());
    forgotten = forget_ended();
  }
  changes_.fetch_add(1, std::memory_order_release);
  futex_wake_all(changes_);
}

}  // namespace p2p::engine
