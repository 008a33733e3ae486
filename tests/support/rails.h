// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hosts.h"

namespace p2p::testing {

/// Two hosts with several networks between them, each by way of a router: one for control, with the number 0,
/// the rest are rails of some speed.
class Rails : public Hosts {
 public:
  static constexpr const char* kLeftAddress = "10.97.0.1";
  static constexpr const char* kRightAddress = "10.98.0.1";

  /// A rail of each speed, as `tc` takes it ("400mbit"); empty: as fast as it goes.
  explicit Rails(const std::vector<std::string>& speeds);

  /// "e1,e2": the hosts' interfaces for them.
  std::string interfaces() const;

  /// The router drops what comes for a rail, in both directions, and tells nobody; or does so no more.
  void set_dark(int rail, bool dark);

  /// The left host's interface is down, or up again.
  void set_down(int rail, bool down);

  /// A rail that had a speed has this one now, in both directions.
  void set_speed(int rail, const std::string& speed);

  /// An address of the host on the right, or on the left, is gone for good.
  void take_address(bool right, int rail);

  /// The ports on the left of what is connected to the right by the path of control.
  std::vector<std::string> control_ports() const;

  /// The router knows nothing more of a connection from this port, and drops what comes for it.
  void forget(const std::string& port);

  /// The router lets no new connections through from now on, or everything again, also what it forgot.
  void refuse_new(bool refused);

  /// Bytes that went over a rail so far, both ways.
  std::uint64_t carried(int rail) const;

 private:
  static constexpr int kLeftNet = 97;
  static constexpr int kRightNet = 98;

  void join(const std::string& host, int i, const char* side, int net);
  void route(const std::string& host, int i, int from, int to);
  void slow_down(int i, const std::string& speed, const char* how);

  /// The router lets no packet through that one of these fits, as nft has it.
  void drop(const std::vector<std::string>& matches);
  void nft(const std::string& command);

  const int rails_;
};

}  // namespace p2p::testing
