// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "support/hex.h"
#include "support/peer.h"

namespace p2p::testing {

/// Two processes that are connected, with a region each that the other one knows. `Place` is where both are:
/// two namespaces with what is between them.
class ConnectedPeers {
 public:
  template <class Place>
  ConnectedPeers(const Place& place, const EndpointPlan& left_plan, const EndpointPlan& right_plan,
                 std::uint64_t size)
      : left(left_plan, place.left()), right(right_plan, place.right()), size_(size) {
    connection = left.number(fmt::format("connect {} {} 20000", right.address(), right.port()));
    at_right = right.accept();
    own = left.region(size);
    theirs = right.region(size);
    id = left.number(fmt::format("import {} {}", connection, to_hex(theirs.descriptor)));
    own_id = right.number(fmt::format("import {} {}", at_right, to_hex(own.descriptor)));
  }

  /// Who does what: "write" or "read", by the left side, or with "_by_right" behind it by the right one.
  struct Work {
    Peer& by;
    std::string operation;
    Peer& from;
    Peer& to;
  };
  Work work(const std::string& words) {
    const std::string operation = words.substr(0, words.find('_'));
    const bool by_right = words != operation;
    const bool to_right = by_right == (operation == "read");
    return {by_right ? right : left, operation, to_right ? left : right, to_right ? right : left};
  }

  /// All that there is, by either side; the transfer's number there.
  std::uint64_t start(Peer& by, const std::string& operation) { return start(by, operation, 0, size_); }

  /// A part of it.
  std::uint64_t start(Peer& by, const std::string& operation, std::uint64_t at, std::uint64_t size) {
    const bool is_left = &by == &left;
    return by.number(fmt::format("{} {} {} {} {} {} {}", operation, is_left ? connection : at_right,
                                 (is_left ? own : theirs).index, at, size, is_left ? id : own_id,
                                 (is_left ? theirs : own).descriptor.address + at));
  }

  /// One side's region has the content of that number, or is expected to.
  void fill(Peer& side, std::uint64_t seed) {
    side.number(fmt::format("fill {} 0 {} {}", region_of(side).index, size_, seed));
  }
  void expect_filled(Peer& side, std::uint64_t seed) { expect_filled(side, seed, size_); }

  /// The first `size` bytes of it.
  void expect_filled(Peer& side, std::uint64_t seed, std::uint64_t size) {
    EXPECT_TRUE(
        is_ok(status_of(side.call(fmt::format("check {} 0 {} {}", region_of(side).index, size, seed)))));
  }

  /// What a side says of its channels.
  std::string routes_at(Peer& side) {
    return side.call(fmt::format("routes {}", &side == &left ? connection : at_right)).value_or("");
  }

  Peer left, right;
  std::uint64_t connection = 0;
  std::uint64_t at_right = 0;  // the same one there
  PeerRegion own, theirs;      // the left side's, the right side's
  std::uint64_t id = 0;        // of `theirs`, on the left
  std::uint64_t own_id = 0;    // of `own`, on the right

 private:
  const PeerRegion& region_of(const Peer& side) const { return &side == &left ? own : theirs; }

  const std::uint64_t size_;
};

}  // namespace p2p::testing
