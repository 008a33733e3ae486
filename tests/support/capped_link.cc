// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "capped_link.h"

#include <fmt/format.h>

#include <string>

namespace p2p::testing {
namespace {

// Connections are numbered as they come; what comes after so many shares with the first ones.
constexpr int kClasses = 64;

}  // namespace

CappedLink::CappedLink(int link, int each) : Hosts("capped") {
  must({"ip", "-n", left_, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", right_});
  for (const auto& [host, address] : {std::pair(left(), kLeftAddress), std::pair(right(), kRightAddress)}) {
    on(host, {"ip", "addr", "add", fmt::format("{}/24", address), "dev", "cable"});
    on(host, {"ip", "link", "set", "cable", "up"});
    each == 0 ? shape(host, link) : cap(host, each);
  }
}

void CappedLink::shape(const std::vector<std::string>& host, int link) {
  on(host, {"tc", "qdisc", "add", "dev", "cable", "root", "tbf", "rate", fmt::format("{}mbit", link), "burst",
            "256k", "latency", "50ms"});
}

void CappedLink::cap(const std::vector<std::string>& host, int each) {
  on(host, {"tc", "qdisc", "add", "dev", "cable", "root", "handle", "1:", "htb"});
  std::string classes;
  for (int i = 0; i != kClasses; ++i) {
    on(host, {"tc", "class", "add", "dev", "cable", "parent", "1:", "classid", fmt::format("1:{:x}", i + 1),
              "htb", "rate", fmt::format("{}mbit", each), "burst", "64k", "quantum", "20000"});
    classes += fmt::format("{}{} : 1:{:x}", i == 0 ? "" : ", ", i, i + 1);
  }
  on(host, {"nft", "add table ip capped"});
  on(host, {"nft", "add chain ip capped out { type filter hook output priority 0; }"});
  on(host, {"nft", "add chain ip capped in { type filter hook input priority 0; }"});
  const std::string number = fmt::format("ct state new ct mark set numgen inc mod {}", kClasses);
  on(host, {"nft", "add rule ip capped in " + number});
  on(host, {"nft", "add rule ip capped out " + number});
  on(host,
     {"nft",
      fmt::format("add rule ip capped out ip protocol tcp meta priority set ct mark map {{ {} }}", classes)});
}

void CappedLink::on(std::vector<std::string> host, const std::vector<std::string>& words) {
  host.insert(host.end(), words.begin(), words.end());
  must(host);
}

}  // namespace p2p::testing
