// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "rails.h"

#include <fmt/format.h>

#include <sstream>

#include "bounds.h"
#include "process.h"

namespace p2p::testing {

Rails::Rails(const std::vector<std::string>& speeds)
    : Hosts("rails", true), rails_(static_cast<int>(speeds.size())) {
  must({"ip", "netns", "exec", router_, "sysctl", "-q", "net.ipv4.ip_forward=1"});
  for (int i = 0; i <= rails_; ++i) {
    join(left_, i, "l", kLeftNet);
    join(right_, i, "r", kRightNet);
    route(left_, i, kLeftNet, kRightNet);
    route(right_, i, kRightNet, kLeftNet);
    if (i != 0) slow_down(i, speeds[static_cast<std::size_t>(i) - 1], "add");
  }
}

std::string Rails::interfaces() const {
  std::string names;
  for (int i = 1; i <= rails_; ++i) names += fmt::format("{}e{}", i == 1 ? "" : ",", i);
  return names;
}

void Rails::set_dark(int rail, bool dark) {
  for (const int net : {kLeftNet, kRightNet}) {
    must({"ip", "-n", router_, "route", dark ? "add" : "del", "blackhole",
          fmt::format("10.{}.{}.1/32", net, rail)});
  }
}

// The route goes with the interface.
void Rails::set_down(int rail, bool down) {
  must({"ip", "-n", left_, "link", "set", fmt::format("e{}", rail), down ? "down" : "up"});
  if (!down) route(left_, rail, kLeftNet, kRightNet);
}

void Rails::set_speed(int rail, const std::string& speed) { slow_down(rail, speed, "change"); }

void Rails::take_address(bool right, int rail) {
  must({"ip", "-n", right ? right_ : left_, "addr", "del",
        fmt::format("10.{}.{}.1/30", right ? kRightNet : kLeftNet, rail), "dev", fmt::format("e{}", rail)});
}

std::vector<std::string> Rails::control_ports() const {
  std::vector<std::string> ports;
  auto process = Process::spawn(
      {"ip", "netns", "exec", left_, "ss", "-Htn", "state", "established", "dst", kRightAddress});
  while (process) {
    const auto line = process->read_line(kLimit);
    if (!line) break;
    std::istringstream words(*line);
    std::string received;
    std::string sent;
    std::string local;
    words >> received >> sent >> local;
    ports.push_back(local.substr(local.rfind(':') + 1));
  }
  return ports;
}

void Rails::drop(const std::vector<std::string>& matches) {
  nft("add table ip p2p");
  nft("add chain ip p2p f { type filter hook forward priority 0; policy accept; }");
  for (const std::string& match : matches) nft("add rule ip p2p f tcp " + match + " drop");
}

void Rails::nft(const std::string& command) { must({"ip", "netns", "exec", router_, "nft", command}); }

void Rails::forget(const std::string& port) { drop({"sport " + port, "dport " + port}); }

void Rails::refuse_new(bool refused) {
  if (refused) return drop({"flags & (syn | ack) == syn"});
  nft("flush chain ip p2p f");
}

std::uint64_t Rails::carried(int rail) const {
  std::uint64_t sum = 0;
  for (const char* side : {"l", "r"}) {
    const std::string file = fmt::format("/sys/class/net/{}{}/statistics/tx_bytes", side, rail);
    auto process = Process::spawn({"ip", "netns", "exec", router_, "cat", file});
    const auto line = process ? process->read_line(kLimit) : tl::unexpected(process.error());
    if (line) sum += std::stoull(*line);
  }
  return sum;
}

// The host's interface eN, which the router calls by `side`.
void Rails::join(const std::string& host, int i, const char* side, int net) {
  const std::string here = fmt::format("e{}", i);
  const std::string there = fmt::format("{}{}", side, i);
  must({"ip", "-n", host, "link", "add", here, "type", "veth", "peer", "name", there, "netns", router_});
  must({"ip", "-n", host, "addr", "add", fmt::format("10.{}.{}.1/30", net, i), "dev", here});
  must({"ip", "-n", router_, "addr", "add", fmt::format("10.{}.{}.2/30", net, i), "dev", there});
  must({"ip", "-n", host, "link", "set", here, "up"});
  must({"ip", "-n", router_, "link", "set", there, "up"});
}

void Rails::route(const std::string& host, int i, int from, int to) {
  must({"ip", "-n", host, "route", "add", fmt::format("10.{}.{}.0/30", to, i), "via",
        fmt::format("10.{}.{}.2", from, i)});
}

void Rails::slow_down(int i, const std::string& speed, const char* how) {
  if (speed.empty()) return;
  for (const char* side : {"l", "r"}) {
    must({"ip", "netns", "exec", router_, "tc", "qdisc", how, "dev", fmt::format("{}{}", side, i), "root",
          "tbf", "rate", speed, "burst", "256k", "latency", "50ms"});
  }
}

}  // namespace p2p::testing
