// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "tcpx/variables.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string_view>

#include "base/error.h"
#include "drivers/nccl_net/defaults.h"
#include "drivers/nccl_net/tcpx.h"
#include "p2p/options.h"
#include "tcpx/bindings.h"

namespace tcpx {
namespace {

namespace net = p2p::nccl_net;
using Verdict = Finding::Verdict;
/// What is wrong with a value; empty: nothing.
using Check = std::string (*)(std::string_view value);

std::string any(std::string_view /*value*/) { return ""; }

std::string is_number(std::string_view value) {
  return number_of(value) ? "" : "not a number: digits alone are read";
}

std::string is_chunk(std::string_view value) {
  if (std::string wrong = is_number(value); !wrong.empty()) return wrong;
  return *number_of(value) >= p2p::NcclNetOptions::kLeastChunkBytes ? "" : "with so few no transfer gets on";
}

std::string is_count(std::string_view value) {
  const auto number = number_of(value);
  const bool good = number && *number >= 1 && *number <= net::kTcpxMaxSockets;
  return good ? "" : fmt::format("1 to {} are possible", net::kTcpxMaxSockets);
}

std::string is_flows(std::string_view value) {
  const auto number = number_of(value);
  return number && *number >= 1 && *number <= 8 ? "" : "1 to 8 are possible";
}

std::string is_folder(std::string_view value) {
  std::error_code error;
  if (value.ends_with('/')) return "no slash may be at the end";
  return std::filesystem::is_directory(value, error) ? "" : "there is no such folder";
}

std::string is_zero(std::string_view value) { return value == "0" ? "" : "only 0 works here"; }
std::string is_one(std::string_view value) { return value == "1" ? "" : "only 1 works here"; }

/// Names as the plugin takes them: prefixes, exact with "=" in front, and "^" excludes.
std::string are_interfaces(std::string_view value) {
  if (value.starts_with("^")) return "";
  std::error_code error;
  for (std::string_view name : split(value, ',')) {
    const bool exact = name.starts_with("=");
    if (exact) name.remove_prefix(1);
    bool found = false;
    for (const auto& entry : std::filesystem::directory_iterator("/sys/class/net", error)) {
      const std::string interface = entry.path().filename().string();
      found = found || (exact ? interface == name : interface.starts_with(name));
    }
    if (!found) return fmt::format("there is no interface {}", name);
  }
  return "";
}

/// 0 counts as unset, and a channel of the engine has 10 s to connect.
std::string is_wait(std::string_view value) {
  if (std::string wrong = is_number(value); !wrong.empty()) return wrong;
  if (*number_of(value) == 0) return "0 counts as unset, which is 5 s";
  return *number_of(value) < 10'000'000 ? "" : "a connection is given up after 10 s";
}

struct Rule {
  const char* variable;
  Check check;
  std::optional<Verdict> unset;  ///< the verdict if it is not set; none: that is fine
  Verdict wrong;
  const char* set_to;
  const char* why;
};

constexpr Rule kRules[] = {
    {"NCCL_DYNAMIC_CHUNK_SIZE", is_chunk, Verdict::kBad, Verdict::kBad, "524288",
     "bytes of a task; unset means 0, and no byte ever moves"},
    {"NCCL_GPUDIRECTTCPX_SOCKET_IFNAME", are_interfaces, Verdict::kAdvice, Verdict::kBad,
     "eth1,eth2,eth3,eth4", "the data NICs, here those of A3 High"},
    {"NCCL_GPUDIRECTTCPX_CTRL_DEV", are_interfaces, Verdict::kAdvice, Verdict::kBad, "eth0",
     "the control NIC, here that of A3 High"},
    {"NCCL_SOCKET_IFNAME", are_interfaces, Verdict::kAdvice, Verdict::kBad, "eth0",
     "NCCL's own connections, where it runs too"},
    {"NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX", any, Verdict::kAdvice, Verdict::kAdvice, "/run/tcpx",
     "the folder of the RxDM sockets"},
    {"NCCL_GPUDIRECTTCPX_PROGRAM_FLOW_STEERING_WAIT_MICROS", is_wait, Verdict::kAdvice, Verdict::kBad,
     "1000000", "without it every accept waits 5 s"},
    {"NCCL_NSOCKS_PERTHREAD", is_count, Verdict::kAdvice, Verdict::kBad, "4", "sockets of a comm and thread"},
    {"NCCL_SOCKET_NTHREADS", is_count, Verdict::kAdvice, Verdict::kBad, "1", "threads of a comm"},
    {"NCCL_GPUDIRECTTCPX_TX_BINDINGS", wrong_with_bindings, Verdict::kAdvice, Verdict::kBad,
     "eth1:8-21,112-125;...", "pins helper threads near their NIC"},
    {"NCCL_GPUDIRECTTCPX_RX_BINDINGS", wrong_with_bindings, Verdict::kAdvice, Verdict::kBad,
     "eth1:22-35,126-139;...", "pins helper threads near their NIC"},
    {"NCCL_GPUDIRECTTCPX_FORCE_ACK", is_zero, std::nullopt, Verdict::kAdvice, "0", "costs packets"},
    {"NCCL_MIN_ZCOPY_SIZE", is_number, std::nullopt, Verdict::kBad, "0",
     "bytes from which host memory is sent without a copy; 0: never"},
    {"NCCL_USE_DMA_BUF", is_one, std::nullopt, Verdict::kBad, "1",
     "registration of CUDA memory fails without DMA-BUF"},
    {"NCCL_INLINE_THRESHOLD", is_zero, std::nullopt, Verdict::kBad, "0",
     "inline bytes do not reach device memory"},
    {"NCCL_GPUDIRECTTCPX_SOCKET_ENABLE", is_one, std::nullopt, Verdict::kBad, "1", "init fails"},
    {"NCCL_TCPX_RXMEM_IMPORT_USE_GPU_PCI_CLIENT", is_one, std::nullopt, Verdict::kBad, "1",
     "the old import of the receive pool"},
};

/// FasTrak takes its defaults for values that it cannot read or that are out of bounds, and says so at info
/// level alone.
constexpr Rule kTcpxoRules[] = {
    {"NCCL_FASTRAK_IFNAME", are_interfaces, Verdict::kAdvice, Verdict::kBad,
     "eth1,eth2,eth3,eth4,eth5,eth6,eth7,eth8", "the data NICs, here those of A3 Mega"},
    {"NCCL_SOCKET_IFNAME", are_interfaces, Verdict::kAdvice, Verdict::kBad, "eth0",
     "NCCL's own connections, where it runs too"},
    {"NCCL_FASTRAK_USE_LLCM", is_one, Verdict::kAdvice, Verdict::kAdvice, "1",
     "the short way to the NIC; its recipe asks for it"},
    {"NCCL_FASTRAK_LLCM_DEVICE_DIRECTORY", is_folder, std::nullopt, Verdict::kBad, "/dev/aperture_devices",
     "where a container finds the devices of that way"},
    {"NCCL_FASTRAK_NUM_FLOWS", is_flows, std::nullopt, Verdict::kBad, "2",
     "connections of a comm, the same on both machines"},
    {"NCCL_FASTRAK_PLUGIN_CONNECT_TIMEOUT_MS", is_number, std::nullopt, Verdict::kBad, "300000",
     "the bound on a connect"},
    {"NCCL_FASTRAK_PLUGIN_ACCEPT_TIMEOUT_MS", is_number, std::nullopt, Verdict::kBad, "600000",
     "the bound on an accept"},
    {"NCCL_FASTRAK_RXDM_INIT_TIMEOUT", is_number, std::nullopt, Verdict::kBad, "30",
     "seconds that init waits for RxDM"},
    {"NCCL_FASTRAK_ENABLE", is_one, std::nullopt, Verdict::kBad, "1", "init ends the process"},
    {"NCCL_FASTRAK_ALLOW_NIC_SUBSET", is_zero, std::nullopt, Verdict::kAdvice, "0",
     "GPUs without their NIC go unnoticed"},
};

Finding judge(const Rule& rule) {
  const auto value = net::users_variable(rule.variable);
  Finding finding{Verdict::kGood, rule.variable, value.value_or("unset"), ""};
  if (!value) {
    finding.verdict = rule.unset.value_or(Verdict::kGood);
    if (rule.unset) finding.advice = fmt::format("set it to {}: {}", rule.set_to, rule.why);
    return finding;
  }
  const std::string wrong = value->empty() ? "empty" : rule.check(*value);
  if (wrong.empty()) return finding;
  finding.verdict = rule.wrong;
  finding.advice = fmt::format("{}; set it to {}: {}", wrong, rule.set_to, rule.why);
  return finding;
}

/// Values that are good each by itself and not together.
void check_sockets(std::vector<Finding>& findings) {
  const auto value = [](const char* name, std::uint64_t fallback) {
    const auto text = net::users_variable(name);
    return text ? number_of(*text) : std::optional(fallback);
  };
  const auto task = value("NCCL_DYNAMIC_CHUNK_SIZE", 0);
  const auto sockets = value("NCCL_NSOCKS_PERTHREAD", 1);
  const auto threads = value("NCCL_SOCKET_NTHREADS", 1);
  if (!task || !sockets || !threads || *sockets > net::kTcpxMaxSockets || *threads > net::kTcpxMaxSockets)
    return;
  const std::uint64_t all = *sockets * *threads;
  if (all > net::kTcpxMaxSockets) {
    findings.push_back(
        {Verdict::kBad, "sockets of a comm", std::to_string(all),
         fmt::format("NCCL_NSOCKS_PERTHREAD x NCCL_SOCKET_NTHREADS is {} at most", net::kTcpxMaxSockets)});
  }
  const std::uint64_t wanted = p2p::NcclNetOptions::kHostChunkBytes;
  if (*task == 0 || *task >= wanted) return;
  findings.push_back(
      {Verdict::kAdvice, "bytes of a message", std::to_string(*task),
       fmt::format("NCCL_DYNAMIC_CHUNK_SIZE allows no more, and messages of {} are faster", wanted)});
}

/// Helper threads of both directions spin.
void check_shared_cpus(std::vector<Finding>& findings) {
  const std::string sends = variable("NCCL_GPUDIRECTTCPX_TX_BINDINGS");
  const std::string receives = variable("NCCL_GPUDIRECTTCPX_RX_BINDINGS");
  const auto cpu = shared_cpu(sends, receives);
  if (!cpu) return;
  findings.push_back(
      {Verdict::kBad, "bindings of both directions", fmt::format("CPU {} is in both", *cpu),
       "give NCCL_GPUDIRECTTCPX_TX_BINDINGS and NCCL_GPUDIRECTTCPX_RX_BINDINGS CPUs of their own"});
}

std::vector<Finding> check_all(std::span<const Rule> rules) {
  std::vector<Finding> findings;
  for (const Rule& rule : rules) {
    Finding finding = judge(rule);
    // Nothing to report of a variable that may be unset and is.
    if (finding.found != "unset" || finding.verdict != Verdict::kGood) findings.push_back(std::move(finding));
  }
  return findings;
}

}  // namespace

std::string variable(const char* name) { return net::users_variable(name).value_or(""); }

std::vector<Finding> check_variables() {
  std::vector<Finding> findings = check_all(kRules);
  check_sockets(findings);
  check_shared_cpus(findings);
  return findings;
}

std::vector<Finding> check_tcpxo_variables() {
  std::vector<Finding> findings = check_all(kTcpxoRules);
  constexpr const char* kControl = "NCCL_FASTRAK_CTRL_DEV";
  const auto control = net::users_variable(kControl);
  const std::string wrong = are_interfaces(control.value_or("eth0"));
  Finding finding{Verdict::kGood, kControl, control.value_or("unset, which is eth0"), ""};
  if (!wrong.empty()) {
    finding.verdict = Verdict::kBad;
    finding.advice = fmt::format("{}; set it to the control NIC, that of the machine's own address", wrong);
  }
  findings.push_back(std::move(finding));
  return findings;
}

bool any_tcpxo_variable() {
  return net::users_variable("NCCL_FASTRAK_CTRL_DEV") ||
         std::ranges::any_of(kTcpxoRules, [](const Rule& rule) {
           return std::string_view(rule.variable).starts_with("NCCL_FASTRAK") &&
                  net::users_variable(rule.variable);
         });
}

}  // namespace tcpx
