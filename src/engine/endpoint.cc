// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/endpoint.h"

#include <sys/epoll.h>

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
#include "engine/key_file.h"

namespace p2p::engine {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kBacklog = 1024;

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
}

}  // namespace

Result<std::string> announced_address(const Options& options) {
  if (!options.listen_address.empty() && !is_wildcard(options.listen_address)) return options.listen_address;
  return socket::default_address({.interfaces = options.announce_interfaces, .near = options.announce_near});
}

Result<std::unique_ptr<Endpoint>> Endpoint::create(const Options& options,
                                                   const TransportRegistry& registry) {
  std::unique_ptr<Endpoint> endpoint(new Endpoint);
  endpoint->context_->options = options;
  if (!options.key_file.empty()) {
    auto key = read_key_file(options.key_file);
    if (!key) return tl::unexpected(key.error());
    endpoint->key_ = std::move(*key);
  }
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
  const auto announced = announced_address(options);
  if (!announced) return tl::unexpected(announced.error());
  std::string wanted = options.listen_address;
  if (wanted.empty()) wanted = key_.empty() ? *announced : "0.0.0.0";
  const auto address = socket::Address::parse(wanted, options.port);
  if (!address) return tl::unexpected(address.error());
  const bool beside = !is_wildcard(wanted) && !address->is_loopback() && !address->is_link_local();
  for (int tries = 0; tries < kPortTries && listeners_.size() != (beside ? 2 : 1); ++tries) {
    listeners_.clear();
    auto listener = socket::open_listener(*address, kBacklog);
    if (!listener) return tl::unexpected(listener.error());
    const auto bound = socket::local_address(listener->get());
    if (!bound) return tl::unexpected(bound.error());
    port_ = bound->port();
    address_ = is_wildcard(wanted) ? *announced : bound->text();
    listeners_.push_back(std::move(*listener));
    if (!beside) continue;
    const auto loopback = socket::Address::parse(address->family() == AF_INET ? "127.0.0.1" : "::1", port_);
    auto second = socket::open_listener(*loopback, kBacklog);
    if (second) {
      listeners_.push_back(std::move(*second));
    } else {
      log(LogLevel::kDebug, "peers of this host cannot use a loopback address: {}", second.error().message);
    }
    if (!second && options.port != 0) break;
  }
  context_->reactor->post([this] {
    for (const UniqueFd& listener : listeners_) {
      const Status watched = context_->reactor->watch(
          listener.get(), EPOLLIN, [this, fd = listener.get()](std::uint32_t) { on_listener(fd); });
      if (!watched) log(LogLevel::kError, "{}", watched.error().message);
    }
  });
  return {};
}

Endpoint::~Endpoint() {
  if (!context_->reactor) return;
  // On the reactor's thread, so that no connection is accepted after the flag is up.
  context_->reactor->post([this] {
    for (const UniqueFd& listener : listeners_) context_->reactor->unwatch(listener.get());
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
  SessionConfig config{incarnation_, key_, {}, options.keepalive, std::max(options.hung, options.keepalive)};
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

std::shared_ptr<Connection> Endpoint::add(Role role) {
  if (!context_->regions->check_process()) {
    const auto ignore = [](const std::shared_ptr<Connection>&) {};
    return Connection::make(context_, ConnectionId{0}, role, {ignore, ignore});
  }
  MutexLock lock(mutex_);
  if (closing_) return nullptr;
  const ConnectionId id{next_id_++};
  auto connection =
      Connection::make(context_, id, role,
                       {[this, role](const std::shared_ptr<Connection>& one) { opened(one, role); },
                        [this](const std::shared_ptr<Connection>& one) { closed(one); }});
  connections_.emplace(id, connection);
  return connection;
}

void Endpoint::on_listener(int listener) {
  while (true) {
    auto socket = socket::try_accept(listener);
    if (!socket) {
      log(LogLevel::kWarning, "{}", socket.error().message);
      return;
    }
    if (!*socket) return;
    const auto connection = add(Role::kAcceptor);
    if (!connection) return;
    connection->accept(std::move(*socket), session_config(std::nullopt),
                       Clock::now() + context_->options.connect_timeout);
  }
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
  for (const auto& [id, connection] : connections_) add_to(sum, connection->stats());
  return sum;
}

void Endpoint::opened(const std::shared_ptr<Connection>& connection, Role role) {
  {
    MutexLock lock(mutex_);
    if (role == Role::kAcceptor) accepted_.push_back(connection);
  }
  changes_.fetch_add(1, std::memory_order_release);
  futex_wake_all(changes_);
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
    connections_.erase(connection->id());
    forgotten = forget_ended();
  }
  changes_.fetch_add(1, std::memory_order_release);
  futex_wake_all(changes_);
}

}  // namespace p2p::engine
