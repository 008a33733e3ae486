// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Random operations between two processes, trouble, and a model of all their memory: README.md says what runs
// there are. Usage: chaos RUN SETTING SEED TIMES SECONDS [LONGEST_STOP_MS]
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <map>
#include <string>

#include "runs.h"
#include "support/peer.h"

namespace p2p::chaos {
namespace {

using Run = std::string (*)(World&, const Extent&);

const std::map<std::string, Run> kRuns{{"kill", run_kill},     {"cancel", run_cancel}, {"stop", run_stop},
                                       {"cut", run_cut},       {"rails", run_rails},   {"netem", run_netem},
                                       {"starve", run_starve}, {"soak", run_soak},     {"leave", run_leave},
                                       {"bad", run_bad}};

std::map<std::string, Setting> settings() {
  std::map<std::string, Setting> all;
  const auto add = [&](const std::string& name, std::vector<std::string> environment) {
    environment.emplace_back("UCCL_P2P_WORKERS=2");
    all[name] = {.name = name, .environment = std::move(environment)};
  };
  add("cma", {"UCCL_P2P_TRANSPORT=cma"});
  // In clear, and encrypted.
  const auto add_streams = [&](const std::string& name, int streams, const auto& change) {
    std::vector<std::string> environment{"UCCL_P2P_TRANSPORT=tcp",
                                         fmt::format("UCCL_P2P_STREAMS={}", streams)};
    add(name, environment);
    environment.push_back("UCCL_P2P_KEY_FILE=" + testing::plan_over("tcp_tls").key_file);
    environment.emplace_back("UCCL_P2P_TLS=require");
    add(name + "_tls", environment);
    for (const std::string& one : {name, name + "_tls"}) change(all[one]);
  };
  for (const int streams : {1, 2, 3, 4}) {
    add_streams(fmt::format("tcp{}", streams), streams, [](Setting& /*as it is*/) {});
  }
  for (const int rails : {2, 4}) {
    add_streams(fmt::format("rails{}", rails), 1, [rails](Setting& setting) {
      setting.rails = rails;
      setting.keepalive = std::chrono::milliseconds(1000);
    });
  }
  for (const std::string control : {"cubic", "bbr"}) {
    const std::string name = "long_" + control;
    add(name, {"UCCL_P2P_TRANSPORT=tcp"});
    all[name].congestion_control = control;
  }
  // Little staging memory, so that all of it has been touched soon.
  add("nccl_net",
      {"UCCL_P2P_TRANSPORT=nccl_net", "UCCL_P2P_NCCL_NET_PLUGIN=" P2P_CHAOS_PLUGIN, "SOFTNET_INTERFACES=lo",
       "UCCL_P2P_NCCL_NET_CHANNELS=3", "UCCL_P2P_NCCL_NET_CHUNK=64K", "UCCL_P2P_NCCL_NET_WINDOW=8"});
  // Two kinds of memory of two emulated GPUs, or one of the host, by a transport or the best; what the GPUs
  // do comes late at random.
  for (const std::string left : {"cuda", "pooled", "mapped", "private"}) {
    for (const std::string right : {"cuda", "pooled", "mapped", "private", "host"}) {
      for (const std::string transport : {"cuda_ipc", "tcp", "best"}) {
        const std::string name = fmt::format("{}_{}_{}", transport, left, right);
        add(name, {"SOFTGPU_DEVICES=2", "SOFTGPU_LATE_US=300"});
        all[name].gpus = {left + ":0", right == "host" ? "" : right + ":1"};
        if (transport != "best") all[name].environment.push_back("UCCL_P2P_TRANSPORT=" + transport);
      }
    }
  }
  return all;
}

int run(const std::vector<std::string>& words) {
  const auto all = settings();
  if (words.size() < 5 || !kRuns.contains(words[0]) || !all.contains(words[1])) {
    fmt::print(stderr, "usage: chaos RUN SETTING SEED TIMES SECONDS [LONGEST_STOP_MS]\n");
    return 2;
  }
  const std::uint64_t seed = std::stoull(words[2]);
  Extent extent{.times = std::stoull(words[3]),
                .end = std::chrono::steady_clock::now() + std::chrono::seconds(std::stoul(words[4]))};
  if (words.size() > 5) extent.longest_stop = std::chrono::milliseconds(std::stoul(words[5]));
  fmt::print("{} {}, seed {}: ", words[0], words[1], seed);
  std::fflush(stdout);
  try {
    World world(all.at(words[1]), seed);
    fmt::print("{}\n", kRuns.at(words[0])(world, extent));
    return 0;
  } catch (const std::exception& error) {
    fmt::print("FAILED: {}\nrepeat: {}\n", error.what(), fmt::join(words, " "));
    return 1;
  }
}

}  // namespace
}  // namespace p2p::chaos

int main(int count, char** words) { return p2p::chaos::run({words + 1, words + count}); }
