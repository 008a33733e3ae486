// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "hosts.h"

#include <fmt/format.h>
#include <unistd.h>

#include "process.h"

namespace p2p::testing {

Hosts::Hosts(const std::string& kind, bool router)
    : left_(fmt::format("p2p-{}-{}-l", ::getpid(), kind)),
      right_(fmt::format("p2p-{}-{}-r", ::getpid(), kind)),
      router_(router ? fmt::format("p2p-{}-{}-m", ::getpid(), kind) : "") {
  for (const std::string& host : all()) {
    must({"ip", "netns", "add", host});
    must({"ip", "-n", host, "link", "set", "lo", "up"});
  }
}

Hosts::~Hosts() {
  for (const std::string& host : all()) (void)run({"ip", "netns", "del", host});
}

std::vector<std::string> Hosts::all() const {
  std::vector<std::string> hosts{left_, right_};
  if (!router_.empty()) hosts.push_back(router_);
  return hosts;
}

void Hosts::must(const std::vector<std::string>& words) {
  if (made_) made_ = run(words);
}

}  // namespace p2p::testing
