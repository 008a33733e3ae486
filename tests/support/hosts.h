// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "p2p/result.h"

namespace p2p::testing {

/// Hosts on one machine: network namespaces, which takes root; gone with the object.
class Hosts {
 public:
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

  /// Whether all that was asked for was made, so far.
  const Status& made() const { return made_; }

  /// The beginning of a command on a host.
  std::vector<std::string> left() const { return on(left_); }
  std::vector<std::string> right() const { return on(right_); }

 protected:
  /// Two of them, with what the kind is called in their names, which no other kind has; and a third one.
  explicit Hosts(const std::string& kind, bool router = false);
  ~Hosts();

  static std::vector<std::string> on(const std::string& host) { return {"ip", "netns", "exec", host}; }

  /// Runs it unless something has failed before.
  void must(const std::vector<std::string>& words);

  const std::string left_, right_, router_;  // the last may be empty
  Status made_;

 private:
  std::vector<std::string> all() const;
};

}  // namespace p2p::testing
