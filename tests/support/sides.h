// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/hex.h"
#include "support/peer.h"

namespace p2p::testing {

/// Two processes with a region each that the other one has imported, and all that they can do with those, one
/// after the other, every byte compared.
class Sides {
 public:
  static constexpr std::uint64_t kSize = 6'000'001;

  explicit Sides(const EndpointPlan& plan) : Sides(plan, plan) {}
  Sides(const EndpointPlan& here, const EndpointPlan& there)
      : peer(there), endpoint(make_endpoint(here)), own(endpoint, kSize) {}

  /// Connects to the peer, or to who stands before it at that port.
  void join(std::uint16_t port = 0) {
    auto made = endpoint.connect("127.0.0.1", port != 0 ? port : peer.port(), kLimit);
    EXPECT_TRUE(is_ok(status_of(made)));
    if (!made) return;
    connection = std::move(*made);
    at_peer = peer.accept();
    meet();
  }

  /// The peer connects to here.
  void be_joined() {
    peer.begin(
        fmt::format("connect 127.0.0.1 {} {}", endpoint.port(), std::chrono::milliseconds(kLimit).count()));
    auto made = endpoint.accept(kLimit);
    EXPECT_TRUE(is_ok(status_of(made)) && is_ok(status_of(peer.finish())));
    if (!made) return;
    connection = std::move(*made);
    at_peer = 0;
    meet();
  }

  /// Each has a region of the other.
  void meet() {
    theirs = peer.region(kSize);
    const auto imported = connection.import_region(theirs.descriptor);
    EXPECT_TRUE(is_ok(status_of(imported)));
    if (imported) target = {*imported, theirs.descriptor.address, kSize};
    own_id = peer.number(fmt::format("import {} {}", at_peer, to_hex(own.region.descriptor())));
  }

  std::string route() const { return connection.routes().front().detail; }

  void expect_there(std::uint64_t seed) {
    EXPECT_TRUE(is_ok(status_of(peer.call(fmt::format("check {} 0 {} {}", theirs.index, kSize, seed)))));
  }
  void fill_there(std::uint64_t seed) {
    peer.number(fmt::format("fill {} 0 {} {}", theirs.index, kSize, seed));
  }
  std::uint64_t begin_at_peer(const char* operation) {
    return peer.number(fmt::format("{} {} {} 0 {} {} {}", operation, at_peer, theirs.index, kSize, own_id,
                                   own.region.descriptor().address));
  }

  void write(std::uint64_t seed) {
    fill(own.pages.bytes(), seed);
    EXPECT_TRUE(is_ok(connection.write(own.span(0, kSize), target).wait(kLimit)));
    expect_there(seed);
  }
  void read(std::uint64_t seed) {
    fill_there(seed);
    EXPECT_TRUE(is_ok(connection.read(own.span(0, kSize), target).wait(kLimit)));
    EXPECT_EQ(difference(own.pages.bytes(), seed), std::nullopt);
  }
  void write_of_peer(std::uint64_t seed) {
    fill_there(seed);
    EXPECT_TRUE(is_ok(peer.wait(begin_at_peer("write"))));
    EXPECT_EQ(difference(own.pages.bytes(), seed), std::nullopt);
  }
  void read_of_peer(std::uint64_t seed) {
    fill(own.pages.bytes(), seed);
    EXPECT_TRUE(is_ok(peer.wait(begin_at_peer("read"))));
    expect_there(seed);
  }
  void message(std::uint64_t seed) {
    fill(own.pages.bytes(), seed);
    const auto receive = peer.number(fmt::format("recv {} {} 0 {}", at_peer, theirs.index, kSize));
    EXPECT_TRUE(is_ok(connection.send(own.span(0, kSize)).wait(kLimit)));
    EXPECT_TRUE(is_ok(peer.wait(receive)));
    expect_there(seed);
  }
  void list(std::uint64_t seed) {
    fill(own.pages.bytes(), seed);
    std::vector<LocalSpan> from;
    std::vector<RemoteSpan> to;
    for (std::uint64_t at = 0; at < kSize; at += 4099) {
      const std::uint64_t size = std::min<std::uint64_t>(4099, kSize - at);
      from.push_back(own.span(at, size));
      to.push_back({target.region, target.address + at, size});
    }
    EXPECT_TRUE(is_ok(connection.write(from, to).wait(kLimit)));
    expect_there(seed);
  }
  void notification(std::uint64_t seed) {
    const std::string text = fmt::format("{}", seed);
    EXPECT_TRUE(is_ok(connection.notify(text).wait(kLimit)));
    const auto came =
        peer.call(fmt::format("notified {} {}", at_peer, std::chrono::milliseconds(kLimit).count()));
    ASSERT_TRUE(is_ok(status_of(came)));
    EXPECT_THAT(*came, ::testing::EndsWith(" " + text));
  }

  static constexpr unsigned kOperations = 7;

  void any(unsigned which, std::uint64_t seed) {
    switch (which % kOperations) {
      case 0: return write(seed);
      case 1: return read(seed);
      case 2: return write_of_peer(seed);
      case 3: return read_of_peer(seed);
      case 4: return message(seed);
      case 5: return list(seed);
      default: return notification(seed);
    }
  }

  Peer peer;
  Endpoint endpoint;
  OwnRegion own;
  Connection connection;
  std::uint64_t at_peer = 0;  ///< the same one there
  PeerRegion theirs;
  RemoteSpan target;
  std::uint64_t own_id = 0;
};

}  // namespace p2p::testing
