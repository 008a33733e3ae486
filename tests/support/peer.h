// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bounds.h"
#include "memory.h"
#include "p2p/endpoint.h"
#include "process.h"

namespace p2p::testing {

/// How an endpoint of a test is made, here or in a peer process.
struct EndpointPlan {
  std::string transport;  ///< comma-separated; empty: all
  std::chrono::milliseconds keepalive{kSanitized ? 3000 : 1000};
  std::chrono::milliseconds hung{30000};
  std::string key_file;
  std::string address = "127.0.0.1";  ///< empty: the default; of a peer process alone
  std::uint16_t port = 0;
  unsigned workers = 0;    ///< 0: the default
  unsigned streams = 0;    ///< 0: the default
  std::string interfaces;  ///< for TCP data, comma-separated
  std::string announce;    ///< of a peer process alone
  std::string plugin;      ///< for `nccl_net`
  std::chrono::milliseconds idle{60000};
  Encryption tls = Encryption::kOff;

  Options options() const;
};

/// A plan for a transport by its name, or `tcp_tls`: tcp with a key and encrypted streams.
EndpointPlan plan_over(const std::string& transport);

/// A peer's memory.
struct PeerRegion {
  std::uint64_t index = 0;
  RegionDescriptor descriptor;
};

/// Another process with an engine, which does what it is told (peer_main.cc). What goes wrong with the
/// process itself fails the test; what the engine answers comes back.
class Peer {
 public:
  /// `prefix` goes in front of the program: "ip netns exec NAME".
  explicit Peer(const EndpointPlan& plan, const std::vector<std::string>& prefix = {});

  const std::string& address() const { return address_; }
  std::uint16_t port() const { return port_; }
  Process& process() { return process_; }

  /// Sends a command without waiting for its answer.
  void begin(const std::string& command);

  /// The answer's words after "ok", or its error.
  Result<std::string> finish(std::chrono::milliseconds timeout = 2 * kLimit);

  Result<std::string> call(const std::string& command);

  /// The answer's number; the test fails if the answer is an error.
  std::uint64_t number(const std::string& command);

  PeerRegion region(std::uint64_t size);

  /// Accepts, or fails the test; the connection's index.
  std::uint64_t accept();

  Status wait(std::uint64_t transfer, std::chrono::milliseconds timeout = kLimit);

 private:
  static Process start(const std::vector<std::string>& prefix);

  Process process_;
  std::string address_;
  std::uint16_t port_ = 0;
};

/// An endpoint here that is connected to one in a peer process.
struct Pair {
  explicit Pair(const EndpointPlan& plan) : Pair(plan, plan) {}
  Pair(const EndpointPlan& here, const EndpointPlan& there);

  Peer peer;
  Endpoint endpoint;
  Connection connection;
  std::uint64_t at_peer = 0;  ///< the same connection there
};

/// Memory here with its registration.
struct OwnRegion {
  OwnRegion(Endpoint& endpoint, std::uint64_t size);

  std::span<std::byte> part(std::size_t offset, std::size_t size) const { return pages.part(offset, size); }
  LocalSpan span(std::size_t offset, std::size_t size) const { return region.span(offset, size); }

  Pages pages;
  MemoryRegion region;  // let go before the pages
};

Endpoint make_endpoint(const EndpointPlan& plan);

/// The test's expectation that a status is good, with its sentence if not.
::testing::AssertionResult is_ok(const Status& status);

/// ... that it is an error with one of some codes.
::testing::AssertionResult is_error(const Status& status, std::initializer_list<ErrorCode> codes);

template <class T>
Status status_of(const Result<T>& result) {
  if (result) return {};
  return tl::unexpected(result.error());
}

}  // namespace p2p::testing
