// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/nccl_net/listen_comm.h"

#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/unique_fd.h"
#include "drivers/nccl_net/tcpxo.h"

namespace p2p::nccl_net {

/// Those that nobody wants and whose accept has not ended, of all plugins. Bounded: who would listen beside
/// too many of them is refused.
class KeptListenComms {
 public:
  static KeptListenComms& all() {
    static KeptListenComms* const kept = new KeptListenComms;
    return *kept;
  }

  /// An error: too many are kept.
  Status make_room(const Plugin& plugin, int gpu) {
    const MutexLock lock(mutex_);
    sweep(plugin, gpu);
    if (comms_.size() < kMost) return {};
    return fail(ErrorCode::kUnavailable, "{} earlier listeners wait for connections that never came", kMost);
  }

  void keep(std::unique_ptr<ListenComm> comm) {
    const MutexLock lock(mutex_);
    comms_.push_back(std::move(comm));
  }

 private:
  static constexpr std::size_t kMost = 256;

  /// Closes those whose accept has ended meanwhile. Of one GPU, since that has to be current.
  void sweep(const Plugin& plugin, int gpu) P2P_REQUIRES(mutex_) {
    std::erase_if(comms_, [&](auto& comm) {
      if (comm->plugin_.get() != &plugin || comm->gpu_ != gpu) return false;
      comm->break_accept();
      void* made = nullptr;
      comm->accept(&made);
      if (made != nullptr) plugin.net().close_recv(made);
      return comm->over_;
    });
  }

  Mutex mutex_;
  std::vector<std::unique_ptr<ListenComm>> comms_ P2P_GUARDED_BY(mutex_);
};

ListenComm::ListenComm(std::shared_ptr<Plugin> plugin, Device device, int gpu)
    : plugin_(std::move(plugin)), device_(std::move(device)), gpu_(gpu) {}

ListenComm::~ListenComm() {
  if (raw_ != nullptr) plugin_->net().close_listen(raw_);
}

Result<std::unique_ptr<ListenComm>> ListenComm::open(std::shared_ptr<Plugin> plugin, const Device& device,
                                                     int gpu) {
  if (auto room = KeptListenComms::all().make_room(*plugin, gpu); !room) {
    return fail(room.error().code, "listen on {}: {}", device.label(), room.error().message);
  }
  auto comm = std::make_unique<ListenComm>(std::move(plugin), device, gpu);
  const int code = comm->plugin_->net().listen(device.index, comm->handle_.data(), &comm->raw_);
  if (code != abi::kSuccess) {
    comm->raw_ = nullptr;
    return tl::unexpected(plugin_error(code, fmt::format("listen on {}", device.label())));
  }
  return comm;
}

void ListenComm::release(std::unique_ptr<ListenComm> comm) {
  if (!comm || !comm->begun_ || comm->over_) return;
  const std::string name = comm->plugin_->name();
  if (!knows_handles_of(name) || is_tcpxo(name)) return;
  comm->break_accept();
  KeptListenComms::all().keep(std::move(comm));
}

void ListenComm::break_accept() const {
  // GPUDirect-TCPX tries three times, each time for a connection and the next one.
  constexpr int kConnections = 6;
  for (const sockaddr_in6& address : own_addresses(handle_, plugin_->name())) {
    const socklen_t size = address.sin6_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    for (int made = 0; made < kConnections; ++made) {
      const UniqueFd socket =
          UniqueFd::of(::socket, address.sin6_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
      // It is this host's own address: the kernel connects at once, or never.
      if (socket) {
        static_cast<void>(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), size));
      }
    }
  }
}

int ListenComm::accept(void** recv_comm) {
  begun_ = true;
  abi::DeviceHandle* device_handle = &device_handle_;
  *recv_comm = nullptr;
  const int code = plugin_->net().accept(raw_, recv_comm, &device_handle);
  over_ = code != abi::kSuccess || *recv_comm != nullptr;
  return code;
}

}  // namespace p2p::nccl_net
