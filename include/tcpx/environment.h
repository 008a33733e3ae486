// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "p2p/api.h"
#include "p2p/result.h"

namespace tcpx {

struct DeviceReport {
  int index = 0;
  std::string name;
  std::string pci_path;  ///< empty: the plugin gave none
  int speed = 0;         ///< Mbit/s
  int numa_node = -1;
  bool host_memory = false;
  bool cuda_memory = false;
  bool unpack = false;  ///< receives into CUDA memory must be unpacked
  int mtu = 0;          ///< bytes; 0: no such interface
  bool up = false;
};

struct PluginReport {
  std::string path;
  std::string name;
  int abi_version = 0;
  std::vector<DeviceReport> devices;
};

/// Opens the plugin (by NCCL's naming rules) and lists what it has; the error says what was tried.
P2P_API p2p::Result<PluginReport> discover(const std::string& plugin);

/// One thing that the TCPX recipe asks for.
struct Finding {
  enum class Verdict { kGood, kAdvice, kBad };
  Verdict verdict = Verdict::kGood;
  std::string subject;  ///< "NCCL_DYNAMIC_CHUNK_SIZE", "eth1", "RxDM"
  std::string found;    ///< what is there
  std::string advice;   ///< what to set or do; empty if good
};

/// Checks variables, interfaces, RxDM sockets, GPU to NIC pairs and DMA-BUF support for this plugin.
P2P_API std::vector<Finding> check_environment(const PluginReport& plugin);

/// All of that which can be told without a plugin: for machines where it does not load. Of FasTrak, A3
/// Mega's, where a variable of its own is set, else of GPUDirect-TCPX.
P2P_API std::vector<Finding> check_environment();

/// Registers memory of each GPU once with each NIC that is next to it, over a connection of this machine with
/// itself on which nothing is sent, after asking RxDM for that GPU. Works in child processes, so that a
/// plugin which ends its process is a finding too; so it has to come before anything here uses CUDA. Takes
/// about 2 s for each GPU and NIC.
P2P_API std::vector<Finding> probe(const std::string& plugin);

/// Why `discover` failed for this plugin, and what to do about it.
P2P_API Finding explain(const std::string& plugin, const p2p::Error& failure);

/// How much is logged, by UCCL_P2P_LOG_LEVEL (trace, debug, info, warning, error, off). Else everything, the
/// plugin's own lines too, with UCCL_TCPX_DEBUG=1, TCPX_DEBUG=1 or NCCL_DEBUG=INFO. Returns true with
/// TCPX_PERF=1: times are wanted.
P2P_API bool set_log_from_environment();

}  // namespace tcpx
