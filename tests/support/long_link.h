// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hosts.h"
#include "process.h"

namespace p2p::testing {

/// Two hosts with one link between them that is long, thin or lossy, as its profile says (link_way.h).
/// A program carries the packets, which takes /dev/net/tun.
class LongLink : public Hosts {
 public:
  static constexpr const char* kLeftAddress = "10.96.0.1";
  static constexpr const char* kRightAddress = "10.96.0.2";

  /// What is wrong with this machine; empty: links can be made.
  static std::string missing();

  LongLink(std::uint64_t seed, const std::string& profile);

  /// The hosts' congestion control, by its name; an error if the kernel has none of that name.
  Status set_congestion_control(const std::string& name);

  /// The most that a stream's buffer for what comes grows to, in bytes.
  Status bound_receive_buffers(std::uint64_t most);

  /// From now on, what is not named as before. What the link has counted until now.
  Result<std::string> change(const std::string& profile);

 private:
  void start(std::uint64_t seed, const std::string& profile);

  std::optional<Process> link_;  // ends before the hosts
};

}  // namespace p2p::testing
