// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <string>

#include "run.h"
#include "tcpx/environment.h"

namespace {

using tcpx::tool::Place;
using tcpx::tool::Plan;

void add_place(CLI::App& app, Place& place) {
  app.add_option("--plugin", place.plugin, "Plugin: a path, or a name by NCCL's rules")
      ->capture_default_str();
  app.add_option("--devices", place.devices, "Devices by index; channels take them in turn")->delimiter(',');
  app.add_option("--gpu", place.gpu, "CUDA device whose memory is moved; without it host memory");
  app.add_option("--port", place.port, "TCP port of the bootstrap connection")->capture_default_str();
  app.add_option_function<unsigned>(
      "--timeout", [&place](unsigned seconds) { place.timeout = std::chrono::seconds(seconds); },
      "Seconds for each step (30)");
  app.add_flag("--json", place.json, "One JSON object a line");
  app.add_flag("--host-pool", place.host_pool,
               "Host memory goes through the pool, for plugins that imitate a device there");
}

void add_plan(CLI::App& app, Plan& plan) {
  app.add_option("--channels", plan.channels, "Comms")->check(CLI::Range(1, 64))->capture_default_str();
  app.add_option("--chunk", plan.chunk_bytes, "Bytes of one message of a comm")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(std::uint64_t{p2p::NcclNetOptions::kLeastChunkBytes},
                         std::uint64_t{p2p::NcclNetOptions::kMostChunkBytes}))
      ->capture_default_str();
  app.add_option("--window", plan.window, "Requests under way on a comm")
      ->check(CLI::Range(1U, p2p::NcclNetOptions::kMostWindow))
      ->capture_default_str();
  if (plan.kind == Plan::Kind::kConnect) return;
  app.add_option("--sizes", plan.sizes, "Bytes of the messages, comma-separated")
      ->delimiter(',')
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  const std::map<std::string, tcpx::TcpxOptions::Unpack> ways{{"kernel", tcpx::TcpxOptions::Unpack::kKernel},
                                                              {"copy", tcpx::TcpxOptions::Unpack::kCopy},
                                                              {"host", tcpx::TcpxOptions::Unpack::kHost}};
  app.add_option("--unpack", plan.unpack, "How receives reach CUDA memory: kernel, copy (engine) or host")
      ->transform(CLI::CheckedTransformer(ways, CLI::ignore_case));
  if (plan.kind == Plan::Kind::kPerf) {
    app.add_option("--threads", plan.threads, "Threads of each side, each with its share of the channels")
        ->check(CLI::Range(1, 64))
        ->capture_default_str();
    app.add_option("--rounds", plan.rounds, "Timed messages of each size")
        ->check(CLI::Range(1, 1000000))
        ->capture_default_str();
  }
}

struct Command {
  Plan plan;
  CLI::App* server = nullptr;
  CLI::App* client = nullptr;
};

void add_command(CLI::App& app, const std::string& name, const std::string& text, Command& command,
                 Place& place) {
  CLI::App* verb = app.add_subcommand(name, text);
  verb->require_subcommand(1);
  command.server = verb->add_subcommand("server", "Waits for a client, which says what to do");
  command.client = verb->add_subcommand("client", "Connects to a server");
  command.client->add_option("host", place.host, "Address or name of the server")->required();
  add_place(*command.server, place);
  add_place(*command.client, place);
  add_plan(*command.client, command.plan);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Finds, checks and uses GPUDirect-TCPX and other NCCL net plugins."};
  app.require_subcommand(1);
  Place place;
  place.port = 18732;
  std::string plugin;
  bool json = false, probing = false;
  CLI::App* discover =
      app.add_subcommand("discover", "Lists devices and checks the machine; ends with 1 if anything is bad");
  discover->add_option("--plugin", plugin, "Plugin: a path, or a name by NCCL's rules");
  discover->add_flag("--json", json, "One JSON object");
  discover->add_flag("--probe", probing, "Registers memory of each GPU with its NICs, in child processes");
  Command connect{{.kind = Plan::Kind::kConnect}}, transfer{{.kind = Plan::Kind::kTransfer}},
      perf{{.kind = Plan::Kind::kPerf}};
  transfer.plan.sizes = {24, 4096, 1000003, 64 << 20};
  perf.plan.sizes = {4096, 65536, 1 << 20, 16 << 20, 64 << 20};
  add_command(app, "connect", "Connects and says how long it took", connect, place);
  add_command(app, "transfer", "Moves messages from client to server and checks every byte", transfer, place);
  add_command(app, "perf", "Measures messages from client to server, every byte checked", perf, place);
  CLI11_PARSE(app, argc, argv);
  place.times = tcpx::set_log_from_environment();

  if (discover->parsed()) {
    return tcpx::tool::show_discovery(plugin, json, probing) ? 0 : 1;
  }
  for (const Command* command : {&connect, &transfer, &perf}) {
    if (!command->server->parsed() && !command->client->parsed()) continue;
    const auto status = tcpx::tool::run(place, command->plan);
    if (!status) fmt::print(stderr, "tcpx: {}\n", status.error().message);
    return status ? 0 : 1;
  }
  return 2;
}
