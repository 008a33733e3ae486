// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "tcpx/interface.h"

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/error.h"
#include "drivers/cuda/device.h"
#include "drivers/nccl_net/listen_comm.h"
#include "drivers/nccl_net/plugin.h"
#include "tcpx/core.h"

/// The C interface: the plugin's calls, unchanged, on the one plugin that was loaded last.
namespace {

namespace net = p2p::nccl_net;

constexpr int kBadCall = -1;

thread_local std::string last_error;

/// Behind one lock; the plugin itself lives for ever once loaded.
struct Loaded {
  std::mutex mutex;
  std::shared_ptr<net::Plugin> plugin;
  std::vector<net::Device> devices;
  std::map<void*, std::unique_ptr<net::ListenComm>> listen_comms;           // by what the caller has
  std::map<void*, std::unique_ptr<net::abi::DeviceHandle>> device_handles;  // by receive comm
};

Loaded& loaded() {
  static Loaded* const all = new Loaded;
  return *all;
}

int refuse(std::string why) {
  last_error = std::move(why);
  return kBadCall;
}

/// Null, with last_error set, if nothing is loaded.
net::Net* current() {
  const std::lock_guard lock(loaded().mutex);
  if (!loaded().plugin) refuse("no plugin is loaded: call tcpx_load_plugin first");
  return loaded().plugin ? &loaded().plugin->net() : nullptr;
}

/// Null if there is no such listen comm.
net::ListenComm* listen_comm_of(void* listen_comm) {
  const std::lock_guard lock(loaded().mutex);
  const auto found = loaded().listen_comms.find(listen_comm);
  return found == loaded().listen_comms.end() ? nullptr : found->second.get();
}

int check(int code, const char* call) {
  if (code != net::abi::kSuccess) last_error = net::plugin_error(code, call).message;
  return code;
}

int load(const std::string& name) {
  auto plugin = net::Plugin::open(name, tcpx::init_as_cuda_is());
  if (!plugin) return refuse(plugin.error().message);
  auto devices = (*plugin)->devices();
  if (!devices) return refuse(devices.error().message);
  const std::lock_guard lock(loaded().mutex);
  loaded().plugin = std::move(*plugin);
  loaded().devices = std::move(*devices);
  return 0;
}

}  // namespace

extern "C" {

int tcpx_load_plugin(const char* plugin_path) { return load(plugin_path == nullptr ? "" : plugin_path); }

int tcpx_get_device_count(void) {
  const bool none = [] {
    const std::lock_guard lock(loaded().mutex);
    return loaded().plugin == nullptr;
  }();
  if (none && load("") != 0) return kBadCall;
  const std::lock_guard lock(loaded().mutex);
  return static_cast<int>(loaded().devices.size());
}

int tcpx_get_properties(int dev, struct tcpx_properties* properties) {
  const std::lock_guard lock(loaded().mutex);
  if (properties == nullptr) return refuse("tcpx_get_properties: null properties");
  if (dev < 0 || static_cast<std::size_t>(dev) >= loaded().devices.size()) {
    return refuse(fmt::format("tcpx_get_properties: there is no device {}", dev));
  }
  const net::Properties& ours = loaded().devices[static_cast<std::size_t>(dev)].properties;
  *properties = {
      ours.name.c_str(),  ours.pci_path.c_str(), ours.guid,      ours.pointer_support, ours.speed,
      ours.port,          ours.latency,          ours.max_comms, ours.max_receives,    ours.device_type,
      ours.device_version};
  return 0;
}

int tcpx_listen(int dev, void* handle, void** listen_comm) {
  if (current() == nullptr) return kBadCall;
  if (handle == nullptr || listen_comm == nullptr) return refuse("tcpx_listen: null argument");
  const std::lock_guard lock(loaded().mutex);
  if (dev < 0 || static_cast<std::size_t>(dev) >= loaded().devices.size()) {
    return refuse(fmt::format("tcpx_listen: there is no device {}", dev));
  }
  const int gpu = p2p::cuda::available() ? p2p::cuda::current_device() : -1;
  if (gpu >= 0) {
    const auto good = net::check_accepts(*loaded().plugin, tcpx::receiving_gpu(gpu));
    if (!good) return refuse(fmt::format("tcpx_listen: {}", good.error().message));
  }
  auto opened = net::ListenComm::open(loaded().plugin, loaded().devices[static_cast<std::size_t>(dev)], gpu);
  if (!opened) return refuse(opened.error().message);
  std::memcpy(handle, (*opened)->handle().data(), TCPX_HANDLE_BYTES);
  *listen_comm = (*opened)->raw();
  loaded().listen_comms[*listen_comm] = std::move(*opened);
  return 0;
}

int tcpx_connect_v5(int dev, void* handle, void** send_comm, void** send_dev_handle) {
  net::Net* const plugin = current();
  if (plugin == nullptr) return kBadCall;
  if (handle == nullptr || send_comm == nullptr) return refuse("tcpx_connect_v5: null argument");
  net::Handle theirs;
  std::memcpy(theirs.data(), handle, theirs.size());
  {
    const std::lock_guard lock(loaded().mutex);
    const auto good = loaded().plugin->check_peer_handle(loaded().devices.front(), theirs);
    if (!good) return refuse(good.error().message);
  }
  net::abi::DeviceHandle storage{};
  net::abi::DeviceHandle* device_handle = &storage;
  if (send_dev_handle != nullptr && *send_dev_handle != nullptr) {
    device_handle = static_cast<net::abi::DeviceHandle*>(*send_dev_handle);
  }
  return check(plugin->connect(dev, handle, send_comm, &device_handle), "tcpx_connect_v5");
}

int tcpx_accept_v5(void* listen_comm, void** recv_comm, void** recv_dev_handle) {
  if (current() == nullptr) return kBadCall;
  net::ListenComm* const comm = listen_comm_of(listen_comm);
  if (comm == nullptr || recv_comm == nullptr)
    return refuse("tcpx_accept_v5: no listen comm, or a null argument");
  if (comm->over()) return refuse("tcpx_accept_v5: this listen comm has had its one connection");
  const int code = check(comm->accept(recv_comm), "tcpx_accept_v5");
  if (code != 0 || *recv_comm == nullptr) return code;
  // The listen comm may go before the receive comm does.
  auto storage = std::make_unique<net::abi::DeviceHandle>(comm->device_handle());
  if (recv_dev_handle != nullptr && *recv_dev_handle != nullptr) {
    std::memcpy(*recv_dev_handle, storage.get(), sizeof *storage);
    return code;
  }
  if (recv_dev_handle != nullptr) *recv_dev_handle = storage.get();
  const std::lock_guard lock(loaded().mutex);
  loaded().device_handles[*recv_comm] = std::move(storage);
  return code;
}

int tcpx_reg_mr(void* comm, void* data, size_t size, int type, void** mhandle) {
  net::Net* const plugin = current();
  if (plugin == nullptr) return kBadCall;
  if (comm == nullptr || mhandle == nullptr) return refuse("tcpx_reg_mr: null argument");
  return check(plugin->register_memory(comm, data, size, type, mhandle), "tcpx_reg_mr");
}

int tcpx_dereg_mr(void* comm, void* mhandle) {
  net::Net* const plugin = current();
  if (plugin == nullptr) return kBadCall;
  return check(plugin->deregister_memory(comm, mhandle), "tcpx_dereg_mr");
}

int tcpx_isend(void* send_comm, void* data, int size, int tag, void* mhandle, void** request) {
  net::Net* const plugin = current();
  if (plugin == nullptr) return kBadCall;
  if (send_comm == nullptr || request == nullptr || size < 0) return refuse("tcpx_isend: bad argument");
  *request = nullptr;
  return check(plugin->isend(send_comm, data, static_cast<std::size_t>(size), tag, mhandle, request),
               "tcpx_isend");
}

int tcpx_irecv(void* recv_comm, int n, void** data, int* sizes, int* tags, void** mhandles, void** request) {
  net::Net* const plugin = current();
  if (plugin == nullptr) return kBadCall;
  if (recv_comm == nullptr || request == nullptr || data == nullptr || sizes == nullptr ||
      mhandles == nullptr) {
    return refuse("tcpx_irecv: null argument");
  }
  if (n != 1 || sizes[0] < 0) return refuse("tcpx_irecv: one receive of a size from 0 on is possible");
  *request = nullptr;
  const int tag = tags == nullptr ? 0 : tags[0];
  return check(
      plugin->irecv(recv_comm, data[0], static_cast<std::size_t>(sizes[0]), tag, mhandles[0], request),
      "tcpx_irecv");
}

int tcpx_test(void* request, int* done, int* size) {
  net::Net* const plugin = current();
  if (plugin == nullptr) return kBadCall;
  if (request == nullptr || done == nullptr) return refuse("tcpx_test: null argument");
  int unwanted = 0;
  return check(plugin->test(request, done, size == nullptr ? &unwanted : size), "tcpx_test");
}

int tcpx_iflush(void* recv_comm, int n, void** data, int* sizes, void** mhandles, void** request) {
  net::Net* const plugin = current();
  if (plugin == nullptr) return kBadCall;
  if (recv_comm == nullptr || request == nullptr || data == nullptr || sizes == nullptr ||
      mhandles == nullptr || n != 1 || sizes[0] < 0) {
    return refuse("tcpx_iflush: bad argument");
  }
  *request = nullptr;
  if (!plugin->has_flush()) return 0;
  return check(plugin->iflush(recv_comm, data[0], static_cast<std::size_t>(sizes[0]), mhandles[0], request),
               "tcpx_iflush");
}

int tcpx_irecv_consumed(void* recv_comm, int n, void* request) {
  net::Net* const plugin = current();
  if (plugin == nullptr) return kBadCall;
  if (recv_comm == nullptr || request == nullptr || n != 1)
    return refuse("tcpx_irecv_consumed: bad argument");
  if (!plugin->has_consumed()) return 0;
  return check(plugin->irecv_consumed(recv_comm, request), "tcpx_irecv_consumed");
}

int tcpx_close_send(void* send_comm) {
  net::Net* const plugin = current();
  if (plugin == nullptr || send_comm == nullptr) return refuse("tcpx_close_send: nothing to close");
  return check(plugin->close_send(send_comm), "tcpx_close_send");
}

int tcpx_close_recv(void* recv_comm) {
  net::Net* const plugin = current();
  if (plugin == nullptr || recv_comm == nullptr) return refuse("tcpx_close_recv: nothing to close");
  const int code = check(plugin->close_recv(recv_comm), "tcpx_close_recv");
  const std::lock_guard lock(loaded().mutex);
  loaded().device_handles.erase(recv_comm);
  return code;
}

int tcpx_close_listen(void* listen_comm) {
  const std::lock_guard lock(loaded().mutex);
  auto found = loaded().listen_comms.extract(listen_comm);
  if (!found) return refuse("tcpx_close_listen: nothing to close");
  net::ListenComm::release(std::move(found.mapped()));
  return 0;
}

const char* tcpx_last_error(void) { return last_error.c_str(); }

}  // extern "C"
