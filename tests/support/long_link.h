// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "p2p/result.h"
#include "process.h"

namespace p2p::testing {

/// Two hosts with one link between them that is long, thin or lossy, as its profile says (link_way.h).
/// Network namespaces and a program that carries the packets, which takes root and /dev/net/tun; gone with
/// the object.
class LongLink {
 public:
  static constexpr const char* kLeftAddress = "10.96.0.1";
  static constexpr const char* kRightAddress = "10.96.0.2";

  /// What is wrong with this machine; empty: links can be made.
  static std::string missing();

  LongLink(std::uint64_t seed, const std::string& profile);
  ~LongLink();
  LongLink(const LongLink&) = delete;
  LongLink& operator=(const LongLink&) = delete;

  const Status& made() const { return made_; }
  std::vector<std::string> left() const { return {"ip", "netns", "exec", left_}; }
  std::vector<std::string> right() const { return {"ip", "netns", "exec", right_}; }

  /// The hosts' congestion control, by its name; an error if the kernel has none of that name.
  Status set_congestion_control(const std::string& name);

  /// From now on, what is not named as before. What the link has counted until now.
  Result<std::string> change(const std::string& profile);

 private:
  void must(const std::vector<std::string>& words);
  void start(std::uint64_t seed, const std::string& profile);

  const std::string left_, right_;
  Status made_;
  std::optional<Process> link_;
};

}  // namespace p2p::testing
