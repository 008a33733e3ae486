// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "drivers/nccl_net/plugin.h"
#include "p2p/result.h"

/// What is known of GPUDirect-TCPX besides its ABI, and matters to whoever uses it.
namespace p2p::nccl_net {

inline constexpr int kTcpxMaxSockets = 8;  ///< of a comm

bool is_tcpx(std::string_view plugin_name);

/// Bytes of one message at most, and what sets that.
struct ChunkLimit {
  std::size_t bytes = 0;
  std::string why;
};

/// What one message of `device` may have. GPUDirect-TCPX cuts a message into tasks, can put two of them on
/// one socket, and gives back the pages of each socket's last task only: of messages of more than one task
/// pages are lost until nothing moves any more. And the list of a receive on an UNPACK device has 2048
/// fragments, each within a packet and a page; one more ends the process. kUnavailable if the environment
/// lets no byte move.
Result<ChunkLimit> chunk_limit(const Plugin& plugin, const Device& device);

/// The smaller of `wanted` and the limit of `device`; says so in the log where that is not `wanted`.
Result<std::size_t> allowed_chunk(const Plugin& plugin, const Device& device, std::size_t wanted);

/// Of the interface with the device's name; 0: there is none.
int mtu_of(const Device& device);

/// GPUDirect-TCPX registers CUDA memory by the NIC's PCI address and crashes where there is none.
Status check_registers_cuda(const Plugin& plugin, const Device& device);

/// Of a library that is open: whether it is softnet, whatever it calls itself.
bool is_softnet(void* library);

/// Whether the plugin is softnet, which has a pool in host memory.
bool has_pool_in_host_memory(const Plugin& plugin);

/// Whether host memory may be registered as a device's. GPUDirect-TCPX takes its address for one of the GPU
/// and crashes; softnet has a pool there.
Status check_host_pool(const Plugin& plugin);

/// A positive number in a variable of the plugin's, which reads digits and ignores what follows. kUnavailable
/// for any other text; `fallback` where it is unset.
Result<std::uint64_t> positive_variable(const char* name, std::uint64_t fallback);

}  // namespace p2p::nccl_net
