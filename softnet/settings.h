// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace softnet {

/// Everything that SOFTNET_* can change; docs/tcpx.md has the table.
struct Settings {
  std::vector<std::string> interfaces;  ///< empty: all that are up, loopback only if there is no other
  bool unpack = false;                  ///< report devices of type UNPACK
  bool cuda = false;                    ///< the pool lies in pinned memory, and sends take device memory
  bool random_fragments = false;        ///< else pages of 4 KiB
  bool strict = false;                  ///< refuse what GPUDirect-TCPX refuses and we need not
  bool report_sizes = false;            ///< `test` tells the length of a receive
  std::uint64_t seed = 1;
  std::size_t pool_bytes = std::size_t{256} << 20;
  std::chrono::milliseconds timeout{10000};  ///< bounds connecting, and a peer that does not acknowledge

  // Faults.
  bool fail_init = false;
  bool no_devices = false;
  bool null_properties = false;  ///< devices have no name and no PCI path
  bool never_connect = false;
  bool never_accept = false;
  bool short_io = false;                     ///< a few bytes at a time
  std::optional<std::uint64_t> drop_after;   ///< a send comm breaks its connection after so many bytes
  std::optional<std::uint64_t> stall_after;  ///< a send comm falls silent after so many bytes
  std::chrono::microseconds delay{0};        ///< between any two moves of bytes on a comm
};

/// Reads the environment; what cannot be read is reported as text and leaves the default.
Settings read_settings(std::vector<std::string>& complaints);

/// As `init` found them.
const Settings& settings();
void set_settings(Settings settings);

}  // namespace softnet
