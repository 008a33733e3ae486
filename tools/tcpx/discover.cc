// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <string>

#include "run.h"
#include "tcpx/environment.h"

namespace tcpx::tool {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char letter : text) {
    if (letter == '"' || letter == '\\') out += '\\';
    if (static_cast<unsigned char>(letter) >= 0x20) out += letter;
  }
  return out + '"';
}

const char* word(Finding::Verdict verdict) {
  switch (verdict) {
    case Finding::Verdict::kGood: return "good";
    case Finding::Verdict::kAdvice: return "advice";
    case Finding::Verdict::kBad: return "bad";
  }
  return "";
}

void print_json(const PluginReport& report, const std::vector<Finding>& findings) {
  fmt::print("{{\"plugin\": {}, \"path\": {}, \"abi\": {}, \"devices\": [", quoted(report.name),
             quoted(report.path), report.abi_version);
  const char* comma = "";
  for (const DeviceReport& device : report.devices) {
    fmt::print(
        "{}{{\"index\": {}, \"name\": {}, \"pci\": {}, \"mbit_per_s\": {}, \"numa\": {}, \"host\": {}, "
        "\"cuda\": {}, \"unpack\": {}, \"mtu\": {}, \"up\": {}}}",
        comma, device.index, quoted(device.name), quoted(device.pci_path), device.speed, device.numa_node,
        device.host_memory, device.cuda_memory, device.unpack, device.mtu, device.up);
    comma = ", ";
  }
  fmt::print("], \"checks\": [");
  comma = "";
  for (const Finding& finding : findings) {
    fmt::print("{}{{\"subject\": {}, \"verdict\": \"{}\", \"found\": {}, \"advice\": {}}}", comma,
               quoted(finding.subject), word(finding.verdict), quoted(finding.found), quoted(finding.advice));
    comma = ", ";
  }
  fmt::print("]}}\n");
}

void print_table(const PluginReport& report, const std::vector<Finding>& findings) {
  fmt::print("{} from {}, ABI v{}\n\n", report.name, report.path, report.abi_version);
  fmt::print("{:<4} {:<16} {:>10} {:>5} {:<12} {}\n", "dev", "name", "Mbit/s", "NUMA", "memory", "PCI");
  for (const DeviceReport& device : report.devices) {
    const std::string memory = fmt::format("{}{}{}", device.host_memory ? "host" : "",
                                           device.cuda_memory ? "+CUDA" : "", device.unpack ? "*" : "");
    fmt::print("{:<4} {:<16} {:>10} {:>5} {:<12} {}\n", device.index, device.name, device.speed,
               device.numa_node, memory, device.pci_path.empty() ? "-" : device.pci_path);
  }
  fmt::print("* receives into CUDA memory must be unpacked\n\n");
  for (const Finding& finding : findings) {
    fmt::print("{:<7} {}: {}\n", word(finding.verdict), finding.subject, finding.found);
    if (!finding.advice.empty()) fmt::print("        -> {}\n", finding.advice);
  }
}

}  // namespace

p2p::Result<bool> show_discovery(const std::string& plugin, bool json) {
  const auto report = discover(plugin);
  if (!report) return tl::unexpected(report.error());
  const std::vector<Finding> findings = check_environment(*report);
  json ? print_json(*report, findings) : print_table(*report, findings);
  bool good = true;
  for (const Finding& finding : findings) good = good && finding.verdict != Finding::Verdict::kBad;
  return good;
}

}  // namespace tcpx::tool
