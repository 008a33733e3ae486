// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/endpoint.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>
#include <utility>

#include "base/descriptor_table.h"
#include "base/error.h"
#include "base/log.h"
#include "base/memory_guard.h"
#include "base/process_id.h"
#include "drivers/crypto/crypto.h"
#include "drivers/cuda/place.h"
#include "drivers/socket/local_place.h"
#include "drivers/socket/socket.h"
#include "engine/listen/own_address.h"
#include "engine/load_transports.h"
#include "p2p/host_port.h"

namespace p2p::engine {
namespace {

using Clock = std::chrono::steady_clock;

// About forty connections have so many on a machine of many cores. With more, the table grows by itself,
// which stops threads for some milliseconds (base/descriptor_table.h).
constexpr std::size_t kExpectedDescriptors = 4096;

Error endpoint_closed() { return {ErrorCode::kCancelled, "the endpoint was closed"}; }

// Attempts to get one port at both addresses, each with a port that the system chooses.
constexpr int kPortTries = 8;

// One for each core up to 8; beyond, one for every two cores, up to 16: the rest is left to the program and
// to peers on this host.
unsigned default_workers() {
  const unsigned cores = std::max(1U, std::thread::hardware_concurrency());
  return std::min(cores, std::clamp(cores / 2, 8U, 16U));
}

/// Addresses to tell a peer that its session may use when the first path fails: of the interfaces that the
/// application named and that channels of both sides use; if it named none, see other_addresses.
std::vector<std::string> addresses_towards(const Context& context, const SessionPeer& peer, bool has_key) {
  if (context.options.interfaces.empty()) {
    return other_addresses(context.options, peer.path.local_address, has_key);
  }
  std::vector<std::string> addresses;
  const auto is_named = [&](const Rail& rail) {
    return std::ranges::any_of(context.options.interfaces, [&](const std::string& wanted) {
      return wanted == rail.name || wanted == rail.address;
    });
  };
  for (const TransportSlot& slot : context.transports()) {
    const bool both = std::ranges::any_of(peer.introduction.transports, [&](const auto& theirs) {
      return theirs.name == slot.transport->name() && theirs.reason.empty();
    });
    if (!both || slot.unusable) continue;
    for (const Rail& rail : slot.transport->rails(peer.path)) {
      if (is_named(rail)) addresses.push_back(rail.address);
    }
  }
  return addresses;
}

}  // namespace

Result<std::unique_ptr<Endpoint>> Endpoint::create(const Options& options,
                                                   const TransportRegistry& registry) {
  if (forked_in_use()) {
    return fail(
        ErrorCode::kUnavailable,
        "make an endpoint: this process was forked while its parent had one, whose threads may have held "
        "locks that are held here for ever; fork before the first endpoint, or start another program");
  }
  if (const auto place = socket::Place::at(options.socket_dir); !place) return tl::unexpected(place.error());
  MemoryReserve::fill();
  std::unique_ptr<Endpoint> endpoint(new Endpoint);
  make_room_for_descriptors(kExpectedDescriptors);
  endpoint->context_->options = options;
  endpoint->context_->peer_budget = std::make_shared<PeerBudget>(options.max_peer_bytes);
  if (Status read = move_into(endpoint->credentials_, CredentialFiles::open(options)); !read) {
    return tl::unexpected(read.error());
  }
  endpoint->context_->trace = Trace::of_process(options);
  std::array<std::byte, sizeof(Incarnation)> drawn{};
  if (Status random = crypto::random_bytes(drawn); !random) return tl::unexpected(random.error());
  std::memcpy(&endpoint->incarnation_, drawn.data(), sizeof endpoint->incarnation_);
  if (auto process = this_process()) endpoint->process_ = *process;
  endpoint->context_->devices = std::make_shared<device::Service>(options);
  auto transports = load_transports(endpoint->context_->options, registry, endpoint->context_->devices);
  if (!transports) return tl::unexpected(transports.error());
  endpoint->context_->regions =
      std::make_shared<RegionTable>(std::move(*transports), endpoint->incarnation_, options.keepalive);
  if (Status started = endpoint->start_threads(); !started) return tl::unexpected(started.error());
  if (Status listening = endpoint->listen(); !listening) return tl::unexpected(listening.error());
  return endpoint;
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
  HostPort announced;
  if (!options.announce.empty()) {
    auto parsed = HostPort::parse(options.announce);
    if (!parsed) return tl::unexpected(parsed.error());
    announced = std::move(*parsed);
  }
  const auto own = own_address(options);
  if (!own) return tl::unexpected(own.error());
  std::uint16_t port = options.port;
  if (const auto named = socket::Address::parse(options.listen_address, port)) port = named->port();
  const bool of_range = port == 0 && options.first_port != 0;
  const std::uint16_t first = of_range ? options.first_port : port;
  const std::uint16_t last = of_range ? std::max(options.first_port, options.last_port) : port;
  std::vector<socket::Address> wanted;
  for (const std::string& text : listen_addresses(options, *own, credentials_ != nullptr)) {
    const auto address = socket::Address::parse(text, port);
    if (!address) return tl::unexpected(address.error());
    wanted.push_back(*address);
  }
  listener_ = std::make_shared<Listener>(
      *context_->reactor,
      Listener::Settings{{options.max_strangers, options.max_strangers_of_address},
                         options.spare_descriptors,
                         options.connect_timeout},
      [this](UniqueFd socket, Strangers::Id stranger) { return welcome(std::move(socket), stranger); });
  if (Status opened = open_port(std::move(wanted), first, last); !opened) return opened;
  address_ = announced.host.empty() ? *own : announced.host;
  port_ = announced.port.value_or(port_);
  context_->port = listener_;
  context_->reactor->post([this] { listener_->start(); });
  return {};
}

/// The port must be free at the first address. The second gets the same port if it is free there.
Status Endpoint::open_port(std::vector<socket::Address> wanted, std::uint16_t first, std::uint16_t last) {
  const int ports = first == 0 ? kPortTries : last - first + 1;
  for (int tried = 1; tried <= ports; ++tried) {
    if (first != 0) {
      for (socket::Address& address : wanted) address.set_port(static_cast<std::uint16_t>(first + tried - 1));
    }
    listener_->discard_all();
    const auto bound = listener_->open(wanted.front());
    const bool is_taken = !bound && (bound.error().code == ErrorCode::kUnavailable ||
                                     bound.error().code == ErrorCode::kPermissionDenied);
    if (is_taken && first != 0) {
      if (tried != ports) continue;
      return fail(bound.error().code, "{}{}; UCCL_P2P_PORT chooses the port, and with 0 the system does",
                  ports == 1 ? "" : fmt::format("none of the ports from {} to {} is free: ", first, last),
                  bound.error().message);
    }
    if (!bound) return tl::unexpected(bound.error());
    port_ = bound->port();
    if (wanted.size() == 1) return {};
    socket::Address beside = wanted.back();
    beside.set_port(port_);
    const auto second = listener_->open(beside);
    if (second) return {};
    log(LogLevel::kDebug, "nobody can connect to {}: {}", beside.describe(), second.error().message);
    if (ports == 1) return {};
  }
  return {};
}

void Endpoint::close(std::chrono::nanoseconds patience) {
  close_connections(deadline_after(patience));
  context_->regions->wait_no_more();
}

void Endpoint::close_connections(Clock::time_point deadline) {
  // On the reactor's thread, so that none is accepted once the listener has closed.
  context_->reactor->post([this] {
    if (listener_) listener_->close();
  });
  connections_.close(endpoint_closed(), deadline);
}

Endpoint::~Endpoint() {
  if (!context_->reactor) return;
  // A session sends its last messages for at most the keepalive time.
  close_connections(Clock::now() + 2 * context_->options.keepalive + std::chrono::seconds(1));
  implicit_.clear();
  implicit_read_only_.clear();
  context_->imports.stop();
  context_->answers.stop();
  context_->digesting.stop();
  context_->watch.stop();
  for (const auto& worker : context_->workers) worker->stop();
  context_->workers.clear();  // they post to the reactor until they are gone
  context_->reactor->stop();
}

Result<MemoryRegion> Endpoint::register_memory(void* data, std::size_t size, const RegionOptions& options) {
  if (!options.peers.empty() && credentials_ == nullptr) {
    return fail(
        ErrorCode::kInvalidArgument,
        "register {} ({} bytes) for named peers: without a key file or certificates no peer can prove a name",
        data, size);
  }
  const auto place = size == 0 ? Result<MemoryPlace>() : cuda::place_of(data);
  if (!place) return tl::unexpected(place.error());
  auto region = context_->regions->add(data, size, *place, options);
  if (!region) return tl::unexpected(region.error());
  if (place->kind == MemoryKind::kCuda && context_->placement) context_->placement->use(place->device);
  return MemoryRegion(std::move(*region));
}

void Endpoint::set_note(std::string note) {
  MutexLock lock(mutex_);
  note_ = std::move(note);
}

SessionConfig Endpoint::session_config(std::optional<std::string> note) const {
  const Options& options = context_->options;
  SessionConfig config{incarnation_,
                       credentials_ ? credentials_->current() : nullptr,
                       options.allow,
                       {},
                       options.tls,
                       options.keepalive,
                       std::max(options.hung, options.keepalive),
                       context_->port,
                       process_,
                       [context = context_.get(), has_key = credentials_ != nullptr](
                           const SessionPeer& peer) { return addresses_towards(*context, peer, has_key); }};
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

/// A stranger gets a session and nothing else of a connection, so that many of them cost little. Until it has
/// proven who it is the listener may close it in favour of others, and where there are no keys, until it is
/// open.
Strangers::Drop Endpoint::welcome(UniqueFd socket, Strangers::Id stranger) {
  const auto deadline = Clock::now() + context_->options.connect_timeout;
  const auto session = std::make_shared<std::shared_ptr<Session>>();  // held by its handlers
  Session::Handlers handlers;
  handlers.opened = [this, session, stranger, deadline](const SessionPeer& peer) {
    const auto connection = connections_.add(Role::kAcceptor);
    if (!connection) return (*session)->drop(endpoint_closed());
    count_until_open(*connection, stranger);
    connection->adopt(std::move(*session), peer, deadline);
  };
  handlers.answered = [this, stranger] { listener_->answered(stranger); };
  handlers.closed = [this, session, stranger](const Error&) { listener_->proven(stranger); };
  *session = Session::accept(*context_->reactor, std::move(socket), session_config(std::nullopt),
                             std::move(handlers), deadline);
  return [weak = std::weak_ptr(*session)](Strangers::Id) {
    if (const auto self = weak.lock()) {
      self->drop({ErrorCode::kUnavailable,
                  "closed in favour of others, as too many connections had not proven themselves"});
    }
  };
}

/// Where no key proves a peer, its first channel is the first that it does.
void Endpoint::count_until_open(Connection& connection, Strangers::Id stranger) {
  if (credentials_ != nullptr) return listener_->proven(stranger);
  listener_->introduced(stranger);
  connection.on_change([reactor = context_->reactor.get(), listener = listener_, stranger] {
    reactor->post([listener, stranger] { listener->proven(stranger); });
  });
}

std::shared_ptr<Connection> Endpoint::connect(const std::string& host, std::uint16_t port,
                                              std::chrono::nanoseconds timeout,
                                              std::optional<std::string> note) {
  const auto connection = connections_.add(Role::kConnector);
  if (!connection) return Connections::ended(context_, endpoint_closed());
  if (!context_->regions->check_process()) return connection;
  connection->dial(host, port, session_config(std::move(note)), deadline_after(timeout));
  return connection;
}

Result<std::shared_ptr<Connection>> Endpoint::accept(std::chrono::nanoseconds timeout) {
  if (Status here = context_->regions->check_process(); !here) return tl::unexpected(here.error());
  auto connection = connections_.accept(deadline_after(timeout));
  if (!connection) {
    return fail(ErrorCode::kTimedOut, "accept on {}:{}: nobody connected in time", address_, port_);
  }
  return connection;
}

Stats Endpoint::stats() const {
  Stats sum = connections_.stats();
  sum.strangers_refused = listener_->refused();
  const auto [regions, bytes] = context_->regions->amount();
  sum.registered_regions = regions;
  sum.registered_bytes = bytes;
  sum.bytes_kept_for_peers = context_->peer_budget->taken();
  return sum;
}

}  // namespace p2p::engine
