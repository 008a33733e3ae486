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

/// `report` is empty where no plugin opens.
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
  if (!report.path.empty())
    fmt::print("{} from {}, ABI v{}\n\n", report.name, report.path, report.abi_version);
  if (!report.devices.empty())
    fmt::print("{:<4} {:<16} {:>10} {:>5} {:<12} {}\n", "dev", "name", "Mbit/s", "NUMA", "memory", "PCI");
  for (const DeviceReport& device : report.devices) {
    const std::string memory = fmt::format("{}{}{}", device.host_memory ? "host" : "",
                                           device.cuda_memory ? "+CUDA" : "", device.unpack ? "*" : "");
    fmt::print("{:<4} {:<16} {:>10} {:>5} {:<12} {}\n", device.index, device.name, device.speed,
               device.numa_node, memory, device.pci_path.empty() ? "-" : device.pci_path);
  }
  if (!report.devices.empty()) fmt::print("* receives into CUDA memory must be unpacked\n\n");
  for (const Finding& finding : findings) {
    fmt::print("{:<7} {}: {}\n", word(finding.verdict), finding.subject, finding.found);
    if (!finding.advice.empty()) fmt::print("        -> {}\n", finding.advice);
  }
}

}  // namespace

bool show_discovery(const std::string& plugin, bool json, bool probing) {
  const std::vector<Finding> probed = probing ? probe(plugin) : std::vector<Finding>{};  // first of all
  const auto report = discover(plugin);
  std::vector<Finding> findings = report ? check_environment(*report) : check_environment();
  if (!report) {
    findings.insert(findings.begin(), explain(plugin, report.error()));
  }
  findings.insert(findings.end(), probed.begin(), probed.end());
  const PluginReport shown = report ? *report : PluginReport{};
  json ? print_json(shown, findings) : print_table(shown, findings);
  bool good = true;
  for (const Finding& finding : findings) good = good && finding.verdict != Finding::Verdict::kBad;
  return good;
}

}  // namespace tcpx::tool
