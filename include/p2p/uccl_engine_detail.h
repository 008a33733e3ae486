// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
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
#include "p2p/result.h"

/// What uccl_engine.h's functions are made of and speak of: programs include that one.

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

/// Tells why something failed; false. Needs no memory.
inline bool refused(const char* attempted, const char* why) noexcept {
  std::fprintf(stderr, "uccl_engine: %s: %s\n", attempted, why);
  return false;
}
inline bool refused(const char* attempted, const std::string& why) noexcept {
  return refused(attempted, why.c_str());
}

/// In a handler, whatever was thrown: tells it, and returns the outcome.
template <class T>
T failed(const char* attempted, T outcome) noexcept {
  try {
    throw;
  } catch (const std::exception& error) {
    refused(attempted, error.what());
  } catch (...) {
    refused(attempted, "what was thrown is no exception");
  }
  return outcome;
}

/// False, and told, if the argument is null.
inline bool given(const void* argument, const char* attempted, const char* name) noexcept {
  if (argument != nullptr) return true;
  std::fprintf(stderr, "uccl_engine: %s: %s is null\n", attempted, name);
  return false;
}

template <class T>
bool told(const p2p::Result<T>& result) {
  if (!result) std::fprintf(stderr, "uccl_engine: %s\n", result.error().message.c_str());
  return result.has_value();
}

/// A notification as bytes: the length of the name, the name, the message.
inline std::string pack(const std::string& name, const std::string& message) {
  const auto length = static_cast<std::uint32_t>(name.size());
  std::string packed(sizeof length, '\0');
  std::memcpy(packed.data(), &length, sizeof length);
  return packed + name + message;
}

/// The name and the message.
inline std::pair<std::string, std::string> unpack(const std::string& packed) {
  std::uint32_t length = ~std::uint32_t{0};
  if (packed.size() >= sizeof length) std::memcpy(&length, packed.data(), sizeof length);
  if (length + sizeof length > packed.size()) return {"", packed};  // of another kind of program
  return {packed.substr(sizeof length, length), packed.substr(sizeof length + length)};
}

struct Engines {  // of this process: notifications are asked for all of them at once
  std::mutex mutex;
  std::set<uccl_engine_t*> all;
};
inline Engines& engines() {
  static Engines known;
  return known;
}

inline void take(uccl_engine_t& engine, std::vector<notify_msg_t>& into) {
  const std::lock_guard lock(engine.mutex);
  for (p2p::Connection& connection : engine.endpoint.connections()) {
    engine.seen.insert_or_assign(connection.id(), connection);
  }
  for (auto entry = engine.seen.begin(); entry != engine.seen.end();) {
    const bool over = entry->second.state() == p2p::ConnectionState::kClosed;  // nothing comes after that
    for (const std::string& packed : entry->second.take_notifications()) {
      auto [name, message] = unpack(packed);
      into.push_back({.name = std::move(name), .msg = std::move(message)});
    }
    entry = over ? engine.seen.erase(entry) : std::next(entry);
  }
}

inline uccl_conn_t* remember(uccl_engine_t* engine, const p2p::Connection& connection) {
  auto made = std::make_unique<uccl_conn_t>(connection);
  const std::lock_guard lock(engine->mutex);
  engine->seen.insert_or_assign(connection.id(), connection);
  return made.release();
}

// False, and told, for null and what was destroyed.
inline bool known(uccl_engine_t* engine, const char* attempted) {
  const std::lock_guard lock(engines().mutex);
  return engines().all.contains(engine) || refused(attempted, "this is no engine, or none any more");
}

}  // namespace uccl_engine_detail
