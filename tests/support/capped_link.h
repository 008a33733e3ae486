// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "hosts.h"

namespace p2p::testing {

/// Two hosts with a short link between them, on which every TCP connection has so much at most, as in clouds;
/// or all have together. Needs root and nft.
class CappedLink : public Hosts {
 public:
  static constexpr const char* kLeftAddress = "10.93.0.1";
  static constexpr const char* kRightAddress = "10.93.0.2";

  /// Mbit/s. With `each` the link has room for all; without (0), `link` is what it has.
  CappedLink(int link, int each);

 private:
  void shape(const std::vector<std::string>& host, int link);
  void cap(const std::vector<std::string>& host, int each);
  void on(std::vector<std::string> host, const std::vector<std::string>& words);
};

}  // namespace p2p::testing
