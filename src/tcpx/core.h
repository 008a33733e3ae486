// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "drivers/cuda/device.h"
#include "drivers/cuda/memory.h"
#include "drivers/cuda/place.h"
#include "drivers/nccl_net/plugin.h"
#include "drivers/nccl_net/receive_manager.h"
#include "tcpx/channel.h"
#include "tcpx/greeting.h"
#include "tcpx/session.h"

namespace tcpx {

/// The channels towards one remote. A failure is final and is every later post's answer.
struct Remote {
  std::vector<SendChannel> sends;
  std::vector<ReceiveChannel> receives;
  std::uint64_t next_send = 0;  ///< chunks dealt out so far, over channels in turn
  std::uint64_t next_receive = 0;
  std::optional<p2p::Error> error;
};

/// As which kind of memory that of a session's CUDA device, or the host's, is registered.
inline net::abi::PointerType pointer_type(const TcpxOptions& options, bool cuda) {
  return cuda || options.host_pool ? net::abi::kPointerCuda : net::abi::kPointerHost;
}

/// What becomes a remote's channels of one direction. Each of `ways` gives one comm.
template <class Way, class Comm>
struct Joining {
  Greeting::Token token;
  std::vector<Way> ways;
  std::vector<std::optional<Comm>> comms;
  std::unique_ptr<Greeting> greeting;  ///< once all comms are there
  Remote remote;

  /// True once all comms are there.
  p2p::Result<bool> poll() {
    if (greeting) return true;
    bool all = true;
    for (std::size_t channel = 0; channel < ways.size(); ++channel) {
      if (comms[channel]) continue;
      auto comm = ways[channel].poll();
      if (!comm) return tl::unexpected(comm.error());
      comms[channel] = std::move(*comm);
      all = all && comms[channel].has_value();
    }
    return all;
  }
};
using Arriving = Joining<net::Listener, net::RecvComm>;  ///< one listen, one client
using Leaving = Joining<net::Connector, net::SendComm>;

/// Makes a session's CUDA device current, as plugins want it; -1: nothing to do.
struct OnDevice {
  explicit OnDevice(int device) {
    if (device >= 0) guard.emplace(device);
  }
  std::optional<p2p::cuda::DeviceGuard> guard;
};

/// If CUDA is available, `available` has initialised it, and a plugin's `init` cannot fail for lack of it.
inline net::Plugin::Init init_as_cuda_is() {
  return p2p::cuda::available() ? net::Plugin::Init::kHere : net::Plugin::Init::kTriedFirst;
}

/// What GPUDirect-TCPX has to find for a CUDA device before its first accept.
inline net::ReceivingGpu receiving_gpu(int device) {
  return {device, p2p::cuda::bus_id_of(device),
          [device] { return p2p::cuda::try_small_allocations(device); }};
}

/// All of a session, behind one lock.
class TcpxSession::Core {
 public:
  Core(TcpxOptions options, std::shared_ptr<net::Plugin> plugin, std::vector<net::Device> devices);
  ~Core();

  p2p::Result<std::vector<std::byte>> listen();
  p2p::Status accept(const std::string& name, std::chrono::milliseconds timeout);
  p2p::Status load(const std::string& name, std::span<const std::byte> info);
  p2p::Status connect(const std::string& name, std::chrono::milliseconds timeout);

  p2p::Result<std::uint64_t> register_memory(void* data, std::size_t size);
  p2p::Status deregister_memory(std::uint64_t mem_id);
  p2p::Result<TcpxMemoryDescriptor> describe_memory(std::uint64_t mem_id);
  std::string describe() const;
  std::size_t chunk_bytes() const { return options_.chunk_bytes; }

  enum class Direction { kSend, kReceive };
  struct Range {
    std::uint64_t mem_id = 0;
    std::uint64_t offset = 0;
    std::uint64_t size = 0;
  };
  p2p::Status post(const std::string& name, Direction direction, const Range& range,
                   const std::shared_ptr<Progress>& progress);

  /// What the remote's channels wait for, in a few words, for the error of a wait that timed out.
  std::string where_it_stands(const std::string& name);

  /// Lets the remote's channels work; true if `progress` has nothing left.
  p2p::Result<bool> poll(const std::string& name, const Progress& progress);

 private:
  const net::Device& device_of(std::size_t channel) const { return devices_[channel % devices_.size()]; }
  p2p::Result<bool> poll_accept(const std::string& name);
  p2p::Result<bool> arrive(Arriving& arriving) P2P_REQUIRES(mutex_);
  p2p::Status open_unpacker() P2P_REQUIRES(mutex_);
  p2p::Result<bool> poll_connect(const std::string& name);
  p2p::Result<bool> leave(Leaving& leaving) P2P_REQUIRES(mutex_);
  p2p::Result<Remote*> find_remote(const std::string& name) P2P_REQUIRES(mutex_);
  p2p::Status move(Remote& remote) P2P_REQUIRES(mutex_);
  void progress_remote(Remote& remote) P2P_REQUIRES(mutex_);

  const TcpxOptions options_;
  const std::shared_ptr<net::Plugin> plugin_;
  const std::vector<net::Device> devices_;

  p2p::Mutex mutex_;
  Memories memories_ P2P_GUARDED_BY(mutex_);
  std::uint64_t last_memory_ P2P_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<p2p::device::Unpacker> unpacker_ P2P_GUARDED_BY(mutex_);
  std::optional<Arriving> arriving_ P2P_GUARDED_BY(mutex_);  ///< from listen to the end of accept
  std::map<std::string, Leaving> leaving_ P2P_GUARDED_BY(mutex_);
  std::map<std::string, Remote> remotes_ P2P_GUARDED_BY(mutex_);
};

}  // namespace tcpx
