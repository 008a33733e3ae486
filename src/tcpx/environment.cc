// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "tcpx/environment.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>

#include "base/error.h"
#include "drivers/cuda/device.h"
#include "drivers/cuda/place.h"
#include "drivers/nccl_net/nearest.h"
#include "drivers/nccl_net/plugin.h"
#include "drivers/nccl_net/receive_manager.h"
#include "drivers/nccl_net/tcpx.h"
#include "drivers/nccl_net/tcpxo.h"
#include "p2p/log.h"
#include "tcpx/core.h"
#include "tcpx/variables.h"

/// What the official recipes for GPUDirect-TCPX and -TCPXO ask, checked.
namespace tcpx {
namespace {

namespace net = p2p::nccl_net;
using Verdict = Finding::Verdict;

template <class T>
T read_file(const std::string& path, const T& fallback) {
  std::ifstream file(path);
  T value = fallback;
  return file >> value ? value : fallback;
}

bool interface_is_up(const std::string& name) {
  const std::string state = read_file<std::string>("/sys/class/net/" + name + "/operstate", "");
  return state == "up" || state == "unknown";  // loopback and some virtual ones do not say "up"
}

/// ".../0000:06:00.0": a function of the PCI bus itself, which a virtio device is not.
bool on_pci(const std::string& path) {
  const std::string name = std::filesystem::path(path).filename().string();
  constexpr std::string_view kShape = "0000:00:00.0";
  return name.size() == kShape.size() && name[4] == ':' && name[7] == ':' && name[10] == '.';
}

/// `tcpx`: as GPUDirect-TCPX needs them.
void check_devices(const std::vector<DeviceReport>& devices, bool tcpx, std::vector<Finding>& findings) {
  for (const DeviceReport& device : devices) {
    Finding finding{Verdict::kGood,
                    device.name.empty() ? fmt::format("device {}", device.index) : device.name, "", ""};
    if (device.mtu == 0) {
      finding.found = "no interface of this name";
      findings.push_back(std::move(finding));
      continue;
    }
    finding.found = fmt::format("{}, MTU {}", device.up ? "up" : "down", device.mtu);
    if (!device.up) {
      finding.verdict = Verdict::kBad;
      finding.advice = fmt::format("ip link set {} up", finding.subject);
    } else if (tcpx && !on_pci(device.pci_path)) {
      finding.verdict = Verdict::kBad;
      finding.advice =
          "it is no gVNIC: GPUDirect-TCPX registers CUDA memory by a NIC's PCI address, and it has none";
    } else if (device.unpack && device.mtu < 8000) {
      finding.verdict = Verdict::kAdvice;
      finding.advice = "an MTU of 8244 lets a packet carry two pages of 4 KiB";
    }
    findings.push_back(std::move(finding));
  }
}

void check_receive_manager(std::vector<Finding>& findings) {
  const net::ReceiveManager manager = net::look_for_receive_manager();
  Finding finding{Verdict::kGood, "RxDM", fmt::format("{} GPUs served in {}", manager.gpus, manager.folder),
                  ""};
  if (!manager.problem.empty()) finding.found = fmt::format("{}: {}", manager.folder, manager.problem);
  if (!manager.is_there() || !manager.problem.empty()) {
    finding.verdict = Verdict::kBad;
    finding.advice =
        "start the receive-datapath manager and point NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX at its sockets";
  }
  findings.push_back(std::move(finding));
}

void check_tcpxo(std::vector<Finding>& findings) {
  std::ranges::move(check_tcpxo_variables(), std::back_inserter(findings));
  const p2p::Status answers = net::check_tcpxo_manager();
  findings.push_back(answers
                         ? Finding{Verdict::kGood, "RxDM", "answers at " + net::tcpxo_manager_address(), ""}
                         : Finding{Verdict::kBad, "RxDM", answers.error().message,
                                   "start it in the same network namespace, or set "
                                   "FILE_BASED_UDS_PATH_PREFIX alike for it and here"});
}

Finding pair_of(int gpu, const std::string& bus_id, const std::vector<net::Device>& devices) {
  const std::string path = net::pci_path_of(bus_id);
  std::vector<std::string> labels;
  bool known = !path.empty();
  for (const net::Device& device : net::nearest(devices, path)) {
    known = known && !device.properties.pci_path.empty();
    labels.push_back(device.label());
  }
  Finding finding{Verdict::kGood, fmt::format("GPU {}", gpu),
                  fmt::format("{}, next to {}", bus_id, fmt::join(labels, ", ")), ""};
  if (known) return finding;
  finding.verdict = Verdict::kAdvice;
  finding.found = fmt::format("{}, its place or that of a NIC on the PCI bus is not known", bus_id);
  finding.advice = fmt::format("all NICs count as near: {}", fmt::join(labels, ", "));
  return finding;
}

/// Where RxDM serves GPUs at all: whether this one is among them.
Finding pool_of(int gpu, const std::string& bus_id) {
  const p2p::Status good = net::check_receive_manager(bus_id);
  return {good ? Verdict::kGood : Verdict::kBad, fmt::format("RxDM of GPU {}", gpu),
          good ? fmt::format("hands out the pool of {}", bus_id) : good.error().message, ""};
}

/// Which NICs each GPU is to use: RxDM steers the flows of a GPU to the one next to it.
void check_pairs(const std::vector<DeviceReport>& reports, bool tcpx, std::vector<Finding>& findings) {
  std::vector<net::Device> devices;
  for (const DeviceReport& report : reports) {
    net::Device& device = devices.emplace_back(net::Device{.index = report.index});
    device.properties.name = report.name;
    device.properties.pci_path = report.pci_path;
  }
  const bool served = tcpx && net::look_for_receive_manager().gpus != 0;
  for (int gpu = 0; gpu < p2p::cuda::device_count(); ++gpu) {
    const auto bus_id = p2p::cuda::bus_id_of(gpu);
    findings.push_back(pair_of(gpu, bus_id.value_or("no bus address"), devices));
    if (served && bus_id) findings.push_back(pool_of(gpu, *bus_id));
  }
}

/// `tcpx`: GPUs need RxDM.
void check_cuda(const std::vector<DeviceReport>& devices, bool tcpx, std::vector<Finding>& findings) {
  if (const auto available = p2p::cuda::available(); !available) {
    findings.push_back(
        {Verdict::kAdvice, "CUDA", available.error().message, "only host memory can be moved"});
    return;
  }
  findings.push_back({Verdict::kGood, "CUDA", fmt::format("{} devices", p2p::cuda::device_count()), ""});
  const bool open_driver = std::filesystem::exists("/proc/driver/nvidia/version") && [] {
    std::ifstream file("/proc/driver/nvidia/version");
    std::string line;
    std::getline(file, line);
    return line.find("Open Kernel Module") != std::string::npos;
  }();
  findings.push_back(
      {open_driver ? Verdict::kGood : Verdict::kAdvice, "DMA-BUF",
       open_driver ? "open kernel module" : "not the open kernel module",
       open_driver ? "" : "exporting CUDA memory as DMA-BUF needs NVIDIA's open kernel module"});
  check_pairs(devices, tcpx, findings);
}

/// NICs on a PCI bus, for a report without a plugin: those that the user named, or else all.
std::vector<DeviceReport> interfaces_on_pci() {
  const std::string wanted =
      variable(any_tcpxo_variable() ? "NCCL_FASTRAK_IFNAME" : "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME");
  std::vector<DeviceReport> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/class/net", error)) {
    const std::string name = entry.path().filename().string();
    const auto path = std::filesystem::canonical(entry.path() / "device", error);
    if (error || (!wanted.empty() && wanted.find(name) == std::string::npos)) continue;
    DeviceReport& report = found.emplace_back();
    report.name = name;
    report.pci_path = path.string();
    report.mtu = read_file("/sys/class/net/" + name + "/mtu", 0);
    report.up = interface_is_up(name);
    report.unpack = true;
  }
  std::ranges::sort(found, {}, &DeviceReport::name);
  for (std::size_t index = 0; index < found.size(); ++index) found[index].index = static_cast<int>(index);
  return found;
}

}  // namespace

p2p::Result<PluginReport> discover(const std::string& plugin) {
  auto opened = net::Plugin::open(plugin, init_as_cuda_is());
  if (!opened) return tl::unexpected(opened.error());
  auto devices = (*opened)->devices();
  if (!devices) return tl::unexpected(devices.error());
  PluginReport report{(*opened)->path(), (*opened)->name(), (*opened)->version(), {}};
  for (const net::Device& device : *devices) {
    const net::Properties& properties = device.properties;
    report.devices.push_back({
        .index = device.index,
        .name = properties.name,
        .pci_path = properties.pci_path,
        .speed = properties.speed,
        .numa_node = device.numa_node,
        .host_memory = (properties.pointer_support & net::abi::kPointerHost) != 0,
        .cuda_memory = (properties.pointer_support & net::abi::kPointerCuda) != 0,
        .unpack = properties.unpacks(),
        .mtu = properties.name.empty() ? 0 : read_file("/sys/class/net/" + properties.name + "/mtu", 0),
        .up = !properties.name.empty() && interface_is_up(properties.name),
    });
  }
  return report;
}

std::vector<Finding> check_environment(const PluginReport& plugin) {
  std::vector<Finding> findings;
  findings.push_back({Verdict::kGood, "plugin",
                      fmt::format("{} from {}, ABI v{}", plugin.name, plugin.path, plugin.abi_version), ""});
  check_devices(plugin.devices, net::is_tcpx(plugin.name), findings);
  // The recipes are those plugins' own: other plugins know nothing of these variables and daemons.
  if (net::is_tcpx(plugin.name)) {
    std::ranges::move(check_variables(), std::back_inserter(findings));
    check_receive_manager(findings);
  } else if (net::is_tcpxo(plugin.name)) {
    check_tcpxo(findings);
  }
  check_cuda(plugin.devices, net::is_tcpx(plugin.name), findings);
  return findings;
}

std::vector<Finding> check_environment() {
  const std::vector<DeviceReport> devices = interfaces_on_pci();
  std::vector<Finding> findings;
  check_devices(devices, false, findings);
  const bool tcpxo = any_tcpxo_variable();
  if (tcpxo) {
    check_tcpxo(findings);
  } else {
    std::ranges::move(check_variables(), std::back_inserter(findings));
    check_receive_manager(findings);
  }
  check_cuda(devices, !tcpxo, findings);
  return findings;
}

Finding explain(const std::string& plugin, const p2p::Error& failure) {
  const bool opens = net::Plugin::peek_name(plugin).has_value();
  return {Verdict::kBad, "plugin", failure.message,
          opens ? "it opens, and does not work here: UCCL_P2P_LOG_LEVEL=debug shows what it says itself"
                : "give --plugin the path of libnccl-net.so"};
}

bool set_log_from_environment() {
  const auto on = [](const char* name) { return !variable(name).empty() && variable(name) != "0"; };
  constexpr std::array kLevels{"trace", "debug", "info", "warning", "error", "off"};
  static_assert(kLevels.size() == static_cast<std::size_t>(p2p::LogLevel::kOff) + 1);
  const std::string wanted = variable("UCCL_P2P_LOG_LEVEL");
  const auto named = std::ranges::find(kLevels, wanted);
  const std::string nccl = variable("NCCL_DEBUG");
  if (named != kLevels.end()) {
    p2p::set_log_level(static_cast<p2p::LogLevel>(named - kLevels.begin()));
  } else if (on("UCCL_TCPX_DEBUG") || on("TCPX_DEBUG") || nccl == "INFO" || nccl == "TRACE") {
    p2p::set_log_level(p2p::LogLevel::kDebug);
  }
  return on("TCPX_PERF");
}

}  // namespace tcpx
