// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "tcpx/environment.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "drivers/cuda/device.h"
#include "drivers/cuda/place.h"
#include "drivers/nccl_net/nearest.h"
#include "drivers/nccl_net/plugin.h"

/// What the official recipe for GPUDirect-TCPX asks, checked. The variables are the plugin's, not ours: they
/// are only read, and only to tell the user.
namespace tcpx {
namespace {

namespace net = p2p::nccl_net;
using Verdict = Finding::Verdict;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

template <class T>
T read_file(const std::string& path, const T& fallback) {
  std::ifstream file(path);
  T value = fallback;
  return file >> value ? value : fallback;
}

bool interface_is_up(const std::string& name) {
  const std::string state = read_file<std::string>("/sys/class/net/" + name + "/operstate", "");
  return state == "up" || state == "unknown";  // loopback and some virtual ones do not tell
}

struct Recipe {
  const char* variable;
  const char* wanted;  ///< null: any value
  Verdict if_wrong;
  const char* why;
};

/// Variables with an effect on GPUDirect-TCPX used directly; NCCL's own need no value here.
constexpr Recipe kRecipe[] = {
    {"NCCL_DYNAMIC_CHUNK_SIZE", "524288", Verdict::kBad, "unset means 0, and no byte ever moves"},
    {"NCCL_GPUDIRECTTCPX_SOCKET_IFNAME", nullptr, Verdict::kAdvice,
     "name the data NICs, on A3 High eth1,eth2,eth3,eth4"},
    {"NCCL_GPUDIRECTTCPX_CTRL_DEV", nullptr, Verdict::kAdvice, "name the control NIC, on A3 High eth0"},
    {"NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX", nullptr, Verdict::kAdvice,
     "the folder of the RxDM sockets, on A3 High /run/tcpx"},
    {"NCCL_GPUDIRECTTCPX_PROGRAM_FLOW_STEERING_WAIT_MICROS", nullptr, Verdict::kAdvice,
     "without it every accept waits 5 s; 1000000 is enough"},
    {"NCCL_NSOCKS_PERTHREAD", nullptr, Verdict::kAdvice, "4 sockets a comm are the recipe's choice"},
    {"NCCL_SOCKET_NTHREADS", nullptr, Verdict::kAdvice, "1 thread a comm is the recipe's choice"},
    {"NCCL_GPUDIRECTTCPX_TX_BINDINGS", nullptr, Verdict::kAdvice, "pins helper threads near their NIC"},
    {"NCCL_GPUDIRECTTCPX_RX_BINDINGS", nullptr, Verdict::kAdvice, "pins helper threads near their NIC"},
};

/// Variables that break it with any value but one.
constexpr Recipe kForbidden[] = {
    {"NCCL_USE_DMA_BUF", "1", Verdict::kBad, "registration of CUDA memory fails without DMA-BUF"},
    {"NCCL_INLINE_THRESHOLD", "0", Verdict::kBad, "inline bytes do not reach device memory"},
    {"NCCL_GPUDIRECTTCPX_SOCKET_ENABLE", "1", Verdict::kBad, "init fails"},
    {"NCCL_TCPX_RXMEM_IMPORT_USE_GPU_PCI_CLIENT", "1", Verdict::kBad, "the old import of the receive pool"},
};

Finding check_variable(const Recipe& recipe) {
  const std::string value = variable(recipe.variable);
  const bool good = recipe.wanted == nullptr ? !value.empty() : !value.empty() && value != "0";
  Finding finding{good ? Verdict::kGood : recipe.if_wrong, recipe.variable, value.empty() ? "unset" : value,
                  ""};
  if (!good) {
    finding.advice =
        recipe.wanted == nullptr ? recipe.why : fmt::format("set it to {}: {}", recipe.wanted, recipe.why);
  }
  return finding;
}

void check_variables(std::vector<Finding>& findings) {
  for (const Recipe& recipe : kRecipe) findings.push_back(check_variable(recipe));
  for (const Recipe& recipe : kForbidden) {
    const std::string value = variable(recipe.variable);
    if (value.empty() || value == recipe.wanted) continue;
    findings.push_back({recipe.if_wrong, recipe.variable, value,
                        fmt::format("leave it unset or set it to {}: {}", recipe.wanted, recipe.why)});
  }
}

void check_devices(const PluginReport& plugin, std::vector<Finding>& findings) {
  for (const DeviceReport& device : plugin.devices) {
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
    } else if (device.unpack && device.mtu < 8000) {
      finding.verdict = Verdict::kAdvice;
      finding.advice = "an MTU of 8244 lets a packet carry two pages of 4 KiB";
    }
    findings.push_back(std::move(finding));
  }
}

void check_receive_manager(std::vector<Finding>& findings) {
  std::string folder = variable("NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX");
  if (folder.empty()) folder = "/tmp";
  std::size_t sockets = 0;
  bool rules = false;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("get_gpu_fd_")) ++sockets;
    rules = rules || name == "rx_rule_manager";
  }
  Finding finding{Verdict::kGood, "RxDM", fmt::format("{} GPUs served in {}", sockets, folder), ""};
  if (error) finding.found = fmt::format("{}: {}", folder, error.message());
  if (sockets == 0 || !rules) {
    finding.verdict = Verdict::kBad;
    finding.advice =
        "start the receive-datapath manager and point NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX at its sockets";
  }
  findings.push_back(std::move(finding));
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

/// Which NICs each GPU is to use: RxDM steers the flows of a GPU to the one next to it.
void check_pairs(const PluginReport& plugin, std::vector<Finding>& findings) {
  std::vector<net::Device> devices;
  for (const DeviceReport& report : plugin.devices) {
    net::Device& device = devices.emplace_back(net::Device{.index = report.index});
    device.properties.name = report.name;
    device.properties.pci_path = report.pci_path;
  }
  for (int gpu = 0; gpu < p2p::cuda::device_count(); ++gpu) {
    findings.push_back(pair_of(gpu, p2p::cuda::bus_id_of(gpu).value_or("no bus address"), devices));
  }
}

void check_cuda(const PluginReport& plugin, std::vector<Finding>& findings) {
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
  check_pairs(plugin, findings);
}

}  // namespace

p2p::Result<PluginReport> discover(const std::string& plugin) {
  auto opened = net::Plugin::open(plugin);
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
  check_devices(plugin, findings);
  // The recipe is GPUDirect-TCPX's own: other plugins know nothing of these variables and daemons.
  if (plugin.name.starts_with("GPUDirectTCPX")) {
    check_variables(findings);
    check_receive_manager(findings);
  }
  check_cuda(plugin, findings);
  return findings;
}

}  // namespace tcpx
