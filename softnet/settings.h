// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace softnet {

/// How received messages are cut.
enum class Fragments : std::uint8_t {
  kPages,    ///< of 4 KiB
  kRandom,   ///< 1 to 9000 bytes, in no order
  kPackets,  ///< what a packet of the interface carries, cut at 4 KiB
};

/// Bad habits of GPUDirect-TCPX 3.1.9, which hosts have to live with, and the ways of FasTrak.
struct Habits {
  bool lazy_pool = false;  ///< the first accept imports the pool, without a lock; a second unmaps the first
  bool accept_thread = false;    ///< the thread of an accept goes on after its listener was closed
  bool accept_blocks = false;    ///< and waits for a peer's second connection as long as it takes
  bool accept_exits = false;     ///< accept ends the process where RxDM does not serve the GPU
  bool other_handles = false;    ///< the fields of a handle lie elsewhere than in 3.1.9's
  bool null_requests = false;    ///< two of three isend and irecv succeed without a request: not now
  bool sigpipe = false;          ///< sending to a peer that has gone raises SIGPIPE
  bool last_tokens = false;      ///< of each socket only the last task's pages are given back
  bool fragment_exit = false;    ///< too many fragments end the process
  bool no_pci_path = false;      ///< devices have none, and registering CUDA memory reads it all the same
  bool init_exit = false;        ///< `init` ends the process, as where CUDA has no device
  bool tcpxo = false;            ///< as FasTrak, GPUDirect-TCPXO's: see docs/tcpx.md
  std::uint64_t task_bytes = 0;  ///< NCCL_DYNAMIC_CHUNK_SIZE; 0: no byte ever moves (with `last_tokens`)
  std::string receive_manager;   ///< NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX, else /tmp
  std::uint64_t sockets = 1;     ///< of a comm: NCCL_NSOCKS_PERTHREAD by NCCL_SOCKET_NTHREADS
};

/// Everything that SOFTNET_* can change; docs/tcpx.md has the table.
struct Settings {
  std::vector<std::string> interfaces;  ///< empty: all that are up, loopback only if there is no other
  bool unpack = false;                  ///< report devices of type UNPACK
  bool cuda = false;                    ///< the pool lies in pinned memory, and sends take device memory
  bool stage = false;                   ///< sends of host memory pass through the pool of sends as well
  Fragments fragments = Fragments::kPages;
  std::string pci_path;       ///< that every device reports; empty: its own
  bool strict = false;        ///< refuse what GPUDirect-TCPX refuses and we need not
  bool report_sizes = false;  ///< `test` tells the length of a receive
  std::uint64_t seed = 1;
  std::size_t pool_bytes = std::size_t{256} << 20;
  std::chrono::milliseconds timeout{10000};  ///< bounds connecting, and a peer that does not answer
  Habits habits;

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

/// What the plugin calls itself, and whether it has the habit `tcpxo`, by the environment as it is when the
/// library is loaded.
const char* name_at_load();
bool tcpxo_at_load();

/// As `init` found them.
const Settings& settings();
void set_settings(Settings settings);

}  // namespace softnet
