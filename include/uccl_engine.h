// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "p2p/connection.h"
#include "p2p/endpoint.h"
#include "p2p/options.h"

/// For programs written to UCCL's C API: engines, connections, registrations and notifications, in this
/// header alone. Link uccl_p2p. Transfers go by p2p/connection.h, through `uccl_conn_t::connection` and
/// `uccl_engine_t::endpoint`. Failures are told on standard error.

using uccl_mr_t = std::uint64_t;

struct uccl_engine_t {
  explicit uccl_engine_t(p2p::Endpoint made) : endpoint(std::move(made)) {}

  p2p::Endpoint endpoint;
  std::atomic<bool> accepting{true};
  std::mutex mutex;
  std::map<uccl_mr_t, p2p::MemoryRegion> regions;
  std::map<p2p::ConnectionId, p2p::Connection> seen;  ///< until what they brought has been taken
};

struct uccl_conn_t {
  p2p::Connection connection;
};

struct notify_msg_t {
  std::string name, msg;  ///< who sent it, and what
};

namespace uccl_engine_detail {

struct Engines {  // of this process: notifications are asked for all of them at once
  std::mutex mutex;
  std::set<uccl_engine_t*> all;
};
inline Engines& engines() {
  static Engines known;
  return known;
}

template <class T>
bool told(const p2p::Result<T>& result) {
  if (!result) std::cerr << "uccl_engine: " << result.error().message << '\n';
  return result.has_value();
}

// A notification as bytes: the length of the name, the name, the message.
inline std::string pack(const notify_msg_t& message) {
  const auto length = static_cast<std::uint32_t>(message.name.size());
  std::string packed(sizeof length, '\0');
  std::memcpy(packed.data(), &length, sizeof length);
  return packed + message.name + message.msg;
}

inline notify_msg_t unpack(const std::string& packed) {
  std::uint32_t length = ~std::uint32_t{0};
  if (packed.size() >= sizeof length) std::memcpy(&length, packed.data(), sizeof length);
  if (length + sizeof length > packed.size())
    return {.name = "", .msg = packed};  // of another kind of program
  return {.name = packed.substr(sizeof length, length), .msg = packed.substr(sizeof length + length)};
}

inline void take(uccl_engine_t& engine, std::vector<notify_msg_t>& into) {
  const std::lock_guard lock(engine.mutex);
  for (p2p::Connection& connection : engine.endpoint.connections()) {
    engine.seen.insert_or_assign(connection.id(), connection);
  }
  for (auto entry = engine.seen.begin(); entry != engine.seen.end();) {
    const bool over = entry->second.state() == p2p::ConnectionState::kClosed;  // nothing comes after that
    for (const std::string& packed : entry->second.take_notifications()) into.push_back(unpack(packed));
    entry = over ? engine.seen.erase(entry) : std::next(entry);
  }
}

inline uccl_conn_t* remember(uccl_engine_t* engine, const p2p::Connection& connection) {
  const std::lock_guard lock(engine->mutex);
  engine->seen.insert_or_assign(connection.id(), connection);
  return new uccl_conn_t{connection};
}

}  // namespace uccl_engine_detail

/// Null on failure. Both arguments are of older engines and change nothing: options come from the
/// environment.
inline uccl_engine_t* uccl_engine_create(int /*num_cpus*/, bool /*in_python*/) {
  const auto options = p2p::Options::from_environment();
  if (!uccl_engine_detail::told(options)) return nullptr;
  auto endpoint = p2p::Endpoint::create(*options);
  if (!uccl_engine_detail::told(endpoint)) return nullptr;
  auto* engine = new uccl_engine_t(std::move(*endpoint));
  const std::lock_guard lock(uccl_engine_detail::engines().mutex);
  uccl_engine_detail::engines().all.insert(engine);
  return engine;
}

/// Destroy its connections before, and stop accepting.
inline void uccl_engine_destroy(uccl_engine_t* engine) {
  {
    const std::lock_guard lock(uccl_engine_detail::engines().mutex);
    uccl_engine_detail::engines().all.erase(engine);
  }
  delete engine;
}

/// Null on failure. The GPU of the peer does not matter here.
inline uccl_conn_t* uccl_engine_connect(uccl_engine_t* engine, const char* ip, const char* /*remote_gpu*/,
                                        int port, bool /*same_process*/ = false) {
  auto connection = engine->endpoint.connect(ip, static_cast<std::uint16_t>(port));
  if (!uccl_engine_detail::told(connection)) return nullptr;
  return uccl_engine_detail::remember(engine, *connection);
}

/// Waits for a peer; null once `uccl_engine_stop_accept` was called.
inline uccl_conn_t* uccl_engine_accept(uccl_engine_t* engine, char* ip, std::size_t ip_size,
                                       int* remote_gpu) {
  constexpr std::chrono::milliseconds kSlice{50};
  while (engine->accepting.load()) {
    auto connection = engine->endpoint.accept(kSlice);
    if (!connection && connection.error().code == p2p::ErrorCode::kTimedOut) continue;
    if (!uccl_engine_detail::told(connection)) return nullptr;
    const std::string address = connection->peer().address;
    if (ip != nullptr && ip_size > 0) ip[address.copy(ip, ip_size - 1)] = '\0';
    if (remote_gpu != nullptr) *remote_gpu = 0;
    return uccl_engine_detail::remember(engine, *connection);
  }
  return nullptr;
}

inline void uccl_engine_stop_accept(uccl_engine_t* engine) { engine->accepting.store(false); }

inline int uccl_engine_start_listener(uccl_conn_t* /*connection*/) { return 0; }
inline void uccl_engine_conn_destroy(uccl_conn_t* connection) {
  constexpr std::chrono::seconds kDrain{5};
  if (connection != nullptr) (void)connection->connection.close(kDrain);
  delete connection;
}

inline int uccl_engine_reg(uccl_engine_t* engine, std::uintptr_t data, std::size_t size, uccl_mr_t& mr,
                           const p2p::RegionOptions& options = {}) {
  auto region = engine->endpoint.register_memory(reinterpret_cast<void*>(data), size, options);
  if (!uccl_engine_detail::told(region)) return -1;
  mr = static_cast<uccl_mr_t>(region->id());
  const std::lock_guard lock(engine->mutex);
  engine->regions.emplace(mr, std::move(*region));
  return 0;
}

inline void uccl_engine_mr_destroy(uccl_engine_t* engine, uccl_mr_t mr) {
  p2p::MemoryRegion dropped;  // what waits for those who use it does so without the lock
  const std::lock_guard lock(engine->mutex);
  if (auto found = engine->regions.extract(mr)) dropped = std::move(found.mapped());
}

/// "address:port?gpu", to be freed with delete[]. 0, or -1 on failure.
inline int uccl_engine_get_metadata(uccl_engine_t* engine, char** metadata) {
  std::string host = engine->endpoint.address();
  if (host.find(':') != std::string::npos) host = "[" + host + "]";
  const std::string text = host + ":" + std::to_string(engine->endpoint.port()) + "?0";
  *metadata = new char[text.size() + 1];
  std::memcpy(*metadata, text.c_str(), text.size() + 1);
  return 0;
}

/// What has come to all engines of the process, and for each connection in order.
inline std::vector<notify_msg_t> uccl_engine_get_notifs() {
  std::vector<notify_msg_t> taken;
  const std::lock_guard lock(uccl_engine_detail::engines().mutex);
  for (uccl_engine_t* engine : uccl_engine_detail::engines().all) uccl_engine_detail::take(*engine, taken);
  return taken;
}

/// The bytes of the message, of any length, once the peer's engine has them; -1 on failure.
inline int uccl_engine_send_notif(uccl_conn_t* connection, const notify_msg_t* message) {
  constexpr std::chrono::seconds kPatience{60};
  if (connection == nullptr || message == nullptr) return -1;
  const p2p::Transfer sent = connection->connection.notify(uccl_engine_detail::pack(*message));
  const p2p::Status status = sent.wait(kPatience);
  if (!status) {
    std::cerr << "uccl_engine: " << status.error().message << '\n';
    return -1;
  }
  return static_cast<int>(message->msg.size());
}
