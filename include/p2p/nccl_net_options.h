// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

namespace p2p {

/// What can be set for NCCL net plugins.
struct NcclNetOptions {
  static constexpr std::size_t kLeastChunkBytes = 4096;
  static constexpr std::size_t kMostChunkBytes = std::size_t{4} << 20;
  static constexpr std::size_t kHostChunkBytes = std::size_t{512} << 10;
  static constexpr std::size_t kGpuChunkBytes = std::size_t{1} << 20;
  static constexpr unsigned kMostWindow = 16;
  static constexpr unsigned kMostChannels = 16;

  /// By path or NCCL's naming rules; empty: libnccl-net.so, if that is GPUDirect-TCPX.
  std::string plugin;

  /// The plugin's receive pool lies in host memory, and host memory is to go through it: for software plugins
  /// that imitate GPU devices.
  bool host_pool = false;

  /// The most bytes of one message of a comm; 0: kGpuChunkBytes for GPU memory, else
  /// kHostChunkBytes. Of the two sides' numbers the smaller one counts.
  std::size_t chunk_bytes = 0;

  /// Requests under way on one comm, 1 to 16.
  unsigned window = kMostWindow;

  /// Comms in each direction for each NIC and GPU, at most 16; 0: `Options::streams`, or chosen from cores.
  /// Of the two sides' numbers the smaller one counts.
  unsigned channels = 0;
};

}  // namespace p2p
