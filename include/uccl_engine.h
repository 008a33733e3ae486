// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "p2p/host_port.h"
#include "p2p/options.h"
#include "p2p/uccl_engine_detail.h"

/// For programs written to UCCL's C API: engines, connections, registrations and notifications, in headers
/// alone. Link uccl_p2p. Transfers go by p2p/connection.h, through `uccl_conn_t::connection` and
/// `uccl_engine_t::endpoint`. Failures, null and unknown arguments among them, are told on standard error.
/// Nothing is thrown, also where memory runs out.

/// Null on failure. Both arguments are of older engines and change nothing: options come from the
/// environment.
inline uccl_engine_t* uccl_engine_create(int /*num_cpus*/, bool /*in_python*/) try {
  const auto options = p2p::Options::from_environment();
  if (!uccl_engine_detail::told(options)) return nullptr;
  auto endpoint = p2p::Endpoint::create(*options);
  if (!uccl_engine_detail::told(endpoint)) return nullptr;
  auto engine = std::make_unique<uccl_engine_t>(std::move(*endpoint));
  const std::lock_guard lock(uccl_engine_detail::engines().mutex);
  uccl_engine_detail::engines().all.insert(engine.get());
  return engine.release();
} catch (...) {
  return uccl_engine_detail::failed<uccl_engine_t*>("create an engine", nullptr);
}

/// Destroy its connections before, and stop accepting.
inline void uccl_engine_destroy(uccl_engine_t* engine) {
  if (!uccl_engine_detail::known(engine, "destroy an engine")) return;
  {
    const std::lock_guard lock(uccl_engine_detail::engines().mutex);
    uccl_engine_detail::engines().all.erase(engine);
  }
  delete engine;
}

/// Null on failure. The GPU of the peer does not matter here.
inline uccl_conn_t* uccl_engine_connect(uccl_engine_t* engine, const char* ip, const char* /*remote_gpu*/,
                                        int port, bool /*same_process*/ = false) try {
  if (!uccl_engine_detail::known(engine, "connect") || !uccl_engine_detail::given(ip, "connect", "ip"))
    return nullptr;
  if (port < 1 || port > 65535) {
    uccl_engine_detail::refused("connect", "port " + std::to_string(port) + " is none of 1 to 65535");
    return nullptr;
  }
  auto connection = engine->endpoint.connect(ip, static_cast<std::uint16_t>(port));
  if (!uccl_engine_detail::told(connection)) return nullptr;
  return uccl_engine_detail::remember(engine, *connection);
} catch (...) {
  return uccl_engine_detail::failed<uccl_conn_t*>("connect", nullptr);
}

/// Waits for a peer; null once `uccl_engine_stop_accept` was called, and on failure.
inline uccl_conn_t* uccl_engine_accept(uccl_engine_t* engine, char* ip, std::size_t ip_size,
                                       int* remote_gpu) try {
  constexpr std::chrono::milliseconds kSlice{50};
  if (!uccl_engine_detail::known(engine, "accept")) return nullptr;
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
} catch (...) {
  return uccl_engine_detail::failed<uccl_conn_t*>("accept", nullptr);
}

inline void uccl_engine_stop_accept(uccl_engine_t* engine) {
  if (uccl_engine_detail::known(engine, "stop accepting")) engine->accepting.store(false);
}

inline int uccl_engine_start_listener(uccl_conn_t* /*connection*/) { return 0; }
inline void uccl_engine_conn_destroy(uccl_conn_t* connection) try {
  constexpr std::chrono::seconds kDrain{5};
  const std::unique_ptr<uccl_conn_t> owned(connection);
  if (owned) (void)owned->connection.close(kDrain);
} catch (...) {
  uccl_engine_detail::failed("destroy a connection", 0);
}

inline int uccl_engine_reg(uccl_engine_t* engine, std::uintptr_t data, std::size_t size, uccl_mr_t& mr,
                           const p2p::RegionOptions& options = {}) try {
  if (!uccl_engine_detail::known(engine, "register memory")) return -1;
  auto region = engine->endpoint.register_memory(reinterpret_cast<void*>(data), size, options);
  if (!uccl_engine_detail::told(region)) return -1;
  const auto id = static_cast<uccl_mr_t>(region->id());
  const std::lock_guard lock(engine->mutex);
  engine->regions.emplace(id, std::move(*region));
  mr = id;
  return 0;
} catch (...) {
  return uccl_engine_detail::failed("register memory", -1);
}

inline void uccl_engine_mr_destroy(uccl_engine_t* engine, uccl_mr_t mr) try {
  constexpr const char* kAttempt = "destroy a registration";
  if (!uccl_engine_detail::known(engine, kAttempt)) return;
  p2p::MemoryRegion dropped;  // what waits for those who use it does so without the lock
  const std::lock_guard lock(engine->mutex);
  auto found = engine->regions.extract(mr);
  if (!found) return (void)uccl_engine_detail::refused(kAttempt, std::to_string(mr) + " is not registered");
  dropped = std::move(found.mapped());
} catch (...) {
  uccl_engine_detail::failed("destroy a registration", 0);
}

/// "address:port?gpu", to be freed with delete[]. 0, or -1 on failure.
inline int uccl_engine_get_metadata(uccl_engine_t* engine, char** metadata) try {
  constexpr const char* kAttempt = "get an engine's metadata";
  if (!uccl_engine_detail::known(engine, kAttempt)) return -1;
  if (!uccl_engine_detail::given(metadata, kAttempt, "metadata")) return -1;
  const std::string text = p2p::HostPort{engine->endpoint.address(), engine->endpoint.port()}.text() + "?0";
  *metadata = new char[text.size() + 1];
  std::memcpy(*metadata, text.c_str(), text.size() + 1);
  return 0;
} catch (...) {
  return uccl_engine_detail::failed("get an engine's metadata", -1);
}

/// What has come to all engines of the process, and for each connection in order.
inline std::vector<notify_msg_t> uccl_engine_get_notifs() {
  std::vector<notify_msg_t> taken;
  try {
    const std::lock_guard lock(uccl_engine_detail::engines().mutex);
    for (uccl_engine_t* engine : uccl_engine_detail::engines().all) uccl_engine_detail::take(*engine, taken);
  } catch (...) {
    uccl_engine_detail::failed("get notifications", 0);
  }
  return taken;
}

/// The bytes of the message, of any length, once the peer's engine has them; -1 on failure.
inline int uccl_engine_send_notif(uccl_conn_t* connection, const notify_msg_t* message) try {
  constexpr const char* kAttempt = "send a notification";
  constexpr std::chrono::seconds kPatience{60};
  if (!uccl_engine_detail::given(connection, kAttempt, "connection")) return -1;
  if (!uccl_engine_detail::given(message, kAttempt, "message")) return -1;
  const std::string packed = uccl_engine_detail::pack(message->name, message->msg);
  if (!uccl_engine_detail::told(connection->connection.notify(packed).wait(kPatience))) return -1;
  return static_cast<int>(message->msg.size());
} catch (...) {
  return uccl_engine_detail::failed("send a notification", -1);
}
