// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "p2p/api.h"
#include "p2p/options.h"
#include "p2p/result.h"
#include "tcpx/memory_descriptor.h"

namespace tcpx {

/// How a session uses its plugin. Both sides of a connection need the same `channels` and `chunk_bytes`;
/// the connection information carries them and they are compared.
struct TcpxOptions {
  /// Path or name of the plugin by NCCL's rules; empty: libnccl-net.so.
  std::string plugin;

  /// The plugin's devices; channels are dealt over them in turn. Empty: those next to `cuda_device` on the
  /// PCI bus, or device 0 for host memory.
  std::vector<int> devices;

  /// Comms in each direction.
  unsigned channels = 2;

  /// Bytes of one message of a comm; 4 KiB to 4 MiB. Less is used, and logged, where the plugin's environment
  /// or the NIC's MTU asks for it.
  std::size_t chunk_bytes = p2p::NcclNetOptions::kHostChunkBytes;

  /// Requests under way on one comm, 1 to 16.
  unsigned window = p2p::NcclNetOptions::kMostWindow;

  /// The CUDA device whose memory is moved; -1: host memory.
  int cuda_device = -1;

  /// How receives into CUDA memory get from the plugin's pool to their places: by one kernel for all that has
  /// come, by copy engine fragment by fragment, or through host memory; the last two are for comparison.
  enum class Unpack : std::uint8_t { kKernel, kCopy, kHost };
  Unpack unpack = Unpack::kKernel;

  /// For software plugins whose UNPACK pool lies in host memory: host memory is then registered as the
  /// device's would be, and takes the way through the pool.
  bool host_pool = false;
};

/// One process' end of TCPX connections: a server listens and accepts and so can receive; a client loads the
/// server's connection information and connects and so can send; who does both may do both. Owns plugin
/// handles, registrations and channels. Any thread may call; calls are serialised. Movable.
class P2P_API TcpxSession {
 public:
  static p2p::Result<TcpxSession> open(const TcpxOptions& options);
  TcpxSession(TcpxSession&&) noexcept;
  TcpxSession& operator=(TcpxSession&&) noexcept;

  /// Closes every channel. Transfers that are not complete fail; memory is no longer touched.
  ~TcpxSession();

  /// Opens the channels that `accept` will complete and returns their connection information, to be brought
  /// to one client by any means. One listen, one accept.
  p2p::Result<std::vector<std::byte>> listen();

  /// Waits until the client that has the information is connected on every channel and calls it
  /// `remote_name`: transfers may receive from it. kPermissionDenied if one with other information came: then
  /// `listen` again.
  p2p::Status accept(const std::string& remote_name, std::chrono::milliseconds timeout);

  /// Keeps a server's connection information, which comes from outside and is checked.
  p2p::Status loadRemoteConnInfo(const std::string& remote_name, std::span<const std::byte> info);

  /// Connects to a remote whose information was loaded: transfers may send to it.
  p2p::Status connect(const std::string& remote_name, std::chrono::milliseconds timeout);

  /// Any number of ranges; CUDA memory is registered by whole pages of 4 KiB around it. Returns its id.
  /// kInvalidArgument for more than the plugin takes at once, which with ABI v7 is less than 2 GiB.
  p2p::Result<std::uint64_t> registerMemory(void* data, std::size_t size);

  /// kInvalidArgument while a transfer still uses it.
  p2p::Status deregisterMemory(std::uint64_t mem_id);

  p2p::Result<TcpxMemoryDescriptor> describeMemory(std::uint64_t mem_id) const;

  /// Bytes of one message of a comm: those of the options, or fewer where that is all that is allowed.
  std::size_t chunk_bytes() const;

  /// Device names and speeds, for people.
  std::string describe() const;

  class Core;  // session.cc

 private:
  friend class TcpxTransfer;
  explicit TcpxSession(std::shared_ptr<Core> core);
  std::shared_ptr<Core> core_;
};

}  // namespace tcpx
