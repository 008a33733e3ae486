// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "flows.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <sstream>
#include <stdexcept>

#include "process.h"

namespace p2p::testing {
namespace {

std::vector<std::string> lines_of(const std::vector<std::string>& command) {
  auto process = Process::spawn(command);
  if (!process) throw std::runtime_error(process.error().message);
  std::vector<std::string> lines;
  for (;;) {
    const auto line = process->read_line(std::chrono::seconds(10));
    if (!line) return lines;
    lines.push_back(*line);
  }
}

}  // namespace

std::vector<Flow> flows_of(pid_t process) {
  std::vector<Flow> flows;
  const std::string owner = fmt::format("pid={},fd=", process);
  for (const std::string& line : lines_of({"ss", "-Htnp", "state", "established"})) {
    const std::size_t at = line.find(owner);
    if (at == std::string::npos) continue;
    std::istringstream words(line);
    std::string received;
    std::string sent;
    Flow flow;
    words >> received >> sent >> flow.local >> flow.remote;
    flow.fd = std::stoi(line.substr(at + owner.size()));
    flows.push_back(std::move(flow));
  }
  std::sort(flows.begin(), flows.end(), [](const Flow& a, const Flow& b) { return a.fd < b.fd; });
  return flows;
}

bool cut(const Flow& flow) {
  return !lines_of({"ss", "-HtnK", "state", "established", "src", flow.local, "dst", flow.remote}).empty();
}

}  // namespace p2p::testing
