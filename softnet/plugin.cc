// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <sys/socket.h>
#include <sys/un.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>

#include "drivers/cuda/device.h"
#include "drivers/cuda/place.h"
#include "drivers/nccl_net/abi/v7.h"
#include "softnet/comm.h"
#include "softnet/connect.h"
#include "softnet/devices.h"
#include "softnet/handle.h"
#include "softnet/log.h"
#include "softnet/settings.h"

/// The table that hosts load, and the translation from its pointers to our types.
namespace softnet {
namespace {

struct Plugin {
  std::mutex mutex;
  std::atomic<bool> ready{false};
  std::vector<Device> devices;
};

/// Never destroyed: hosts never unload a plugin, and their threads may outlive static destructors.
Plugin& plugin() {
  static Plugin* const instance = new Plugin;
  return *instance;
}

/// What is registered as CUDA memory is taken; it is such memory with SOFTNET_CUDA alone.
bool takes_cuda() { return settings().unpack || settings().habits.tcpxo; }

const Device* find_device(int index) {
  Plugin& self = plugin();
  if (!self.ready || index < 0 || static_cast<std::size_t>(index) >= self.devices.size()) return nullptr;
  return &self.devices[static_cast<std::size_t>(index)];
}

int init(abi::Logger logger) {
  Plugin& self = plugin();
  const std::lock_guard lock(self.mutex);
  if (self.ready) return abi::kInternalError;
  set_logger(logger);
  std::vector<std::string> complaints;
  set_settings(read_settings(complaints));
  for (const std::string& complaint : complaints) warn("{}", complaint);
  if (settings().habits.init_exit) std::exit(1);  // NOLINT(concurrency-mt-unsafe): as the one imitated
  if (settings().fail_init) {
    warn("init fails, as SOFTNET_FAULT asks");
    return abi::kInternalError;
  }
  if (settings().cuda) {
    // NCCL's kernels wait for what this plugin sends, and other work of the program's for these kernels.
    // Where a NIC would read device memory this has it copied, and the queues of the copy engines are shared
    // by all streams: behind a copy that waits for a kernel it would wait for ever. So NCCL is to send from
    // host memory, unless the user says otherwise.
    ::setenv("NCCL_NET_GDR_READ", "0", 0);  // NOLINT(concurrency-mt-unsafe): NCCL reads it after this
    if (const auto available = p2p::cuda::available(); !available) {
      warn("SOFTNET_CUDA is set: {}", available.error().message);
      return abi::kInternalError;
    }
  }
  if (!settings().no_devices) self.devices = find_devices(settings());
  for (const Device& device : self.devices) {
    inform("device {}: {} Mbit/s, {}", device.name, device.speed,
           settings().unpack ? (settings().cuda ? "UNPACK of CUDA memory" : "UNPACK")
           : takes_cuda()    ? "CUDA memory"
                             : "host memory");
  }
  self.ready = true;
  return abi::kSuccess;
}

int devices(int* count) {
  if (!plugin().ready || count == nullptr) return abi::kInternalError;
  *count = static_cast<int>(plugin().devices.size());
  return abi::kSuccess;
}

int get_properties(int index, abi::v7::Properties* properties) {
  const Device* device = find_device(index);
  if (device == nullptr || properties == nullptr) return abi::kInternalError;
  const bool null = settings().null_properties;
  *properties = {};
  if (!null) properties->name = const_cast<char*>(device->name.c_str());
  if (!null && !device->pci_path.empty()) properties->pci_path = const_cast<char*>(device->pci_path.c_str());
  properties->guid = static_cast<std::uint64_t>(index);
  properties->pointer_support = abi::kPointerHost | (takes_cuda() ? abi::kPointerCuda : 0);
  properties->speed = device->speed;
  properties->max_comms = 65536;
  properties->max_receives = 1;
  properties->device_type = settings().unpack ? abi::kDeviceUnpack : abi::kDeviceHost;
  properties->device_version = takes_cuda() ? abi::kUnpackVersion : 0;
  return abi::kSuccess;
}

int listen(int index, void* buffer, void** comm) {
  const Device* device = find_device(index);
  if (device == nullptr || buffer == nullptr || comm == nullptr) return abi::kInternalError;
  end_stale_attempts();
  Handle handle;
  std::unique_ptr<Listener> listener = Listener::open(*device, handle);
  if (!listener) return abi::kSystemError;
  write_handle(handle, buffer);
  *comm = listener.release();
  return abi::kSuccess;
}

int connect(int index, void* buffer, void** comm, abi::DeviceHandle** /*device_handle*/) {
  const Device* device = find_device(index);
  if (device == nullptr || buffer == nullptr || comm == nullptr) return abi::kInternalError;
  *comm = nullptr;
  Handle handle = read_handle(buffer);
  std::unique_ptr<SendComm> made;
  if (handle.attempt == 0) end_stale_attempts();
  const int code = poll_connect(*device, handle, made);
  write_handle(handle, buffer);
  *comm = made.release();
  return code;
}

/// With the habit: the pool of the GPU in use comes from RxDM, once. Where that has none the process ends.
void ask_receive_manager() {
  static std::atomic<bool> asked{false};
  if (!settings().habits.accept_exits || asked) return;
  const auto bus_id = p2p::cuda::bus_id_of(p2p::cuda::current_device());
  const auto path =
      fmt::format("{}/get_gpu_fd_{}", settings().habits.receive_manager, bus_id.value_or("unknown"));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  const UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  asked = ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  if (asked) return;
  warn("accept: no pool of the GPU: {}: {}", path, reason(errno));
  std::exit(1);  // NOLINT(concurrency-mt-unsafe): as the one imitated
}

int accept(void* listener, void** comm, abi::DeviceHandle** device_handle) {
  if (listener == nullptr || comm == nullptr) return abi::kInternalError;
  end_stale_attempts();
  ask_receive_manager();
  int code = abi::kSuccess;
  std::unique_ptr<RecvComm> made = static_cast<Listener*>(listener)->poll(code);
  if (made && device_handle != nullptr && *device_handle != nullptr) made->describe(**device_handle);
  *comm = made.release();
  return code;
}

int reg_mr(void* comm, void* data, int size, int type, void** mhandle) {
  const bool known = type == abi::kPointerHost || (type == abi::kPointerCuda && takes_cuda());
  if (comm == nullptr || mhandle == nullptr || size < 0 || !known) return abi::kInternalError;
  const bool aligned = reinterpret_cast<std::uintptr_t>(data) % 4096 == 0;
  if (settings().strict && type == abi::kPointerCuda && !aligned) {
    warn("regMr of {}: not aligned to 4 KiB", data);
    return abi::kInternalError;
  }
  // The plugin that is imitated would read the path of a NIC that has none.
  if (settings().habits.no_pci_path && type == abi::kPointerCuda) ::raise(SIGSEGV);
  int on_device = -1;
  if (settings().cuda && type == abi::kPointerCuda) {
    const auto place = p2p::cuda::place_of(data);
    if (!place || place->kind != p2p::MemoryKind::kCuda) {
      warn("regMr of {}: no CUDA memory", data);
      return abi::kInternalError;
    }
    on_device = place->device;
  }
  *mhandle = new MemoryHandle{static_cast<std::byte*>(data), static_cast<std::size_t>(size), type, on_device};
  return abi::kSuccess;
}

int dereg_mr(void* /*comm*/, void* mhandle) {
  delete static_cast<MemoryHandle*>(mhandle);
  return abi::kSuccess;
}

/// With the habit that posts get no request: true for two of three.
bool not_now(void** request) {
  static std::atomic<unsigned> asked{0};
  if (!settings().habits.null_requests || request == nullptr || ++asked % 3 == 0) return false;
  *request = nullptr;
  return true;
}

int isend(void* comm, void* data, int size, int /*tag*/, void* mhandle, void** request) {
  if (comm == nullptr) return abi::kInternalError;
  if (not_now(request)) return abi::kSuccess;
  return static_cast<SendComm*>(comm)->post(data, size, static_cast<MemoryHandle*>(mhandle), request);
}

int irecv(void* comm, int count, void** data, int* sizes, int* /*tags*/, void** mhandles, void** request) {
  if (comm == nullptr || count != 1) return abi::kInternalError;
  if (not_now(request)) return abi::kSuccess;
  return static_cast<RecvComm*>(comm)->post(data[0], sizes[0], static_cast<MemoryHandle*>(mhandles[0]),
                                            request);
}

/// Mostly there is nothing to flush: what is done is visible. With the habit `request` may stay as it was.
int iflush(void* comm, int count, void** data, int* sizes, void** /*mhandles*/, void** request) {
  if (!settings().habits.tcpxo) {
    *request = nullptr;
    return abi::kSuccess;
  }
  if (comm == nullptr || count != 1) return abi::kInternalError;
  return static_cast<RecvComm*>(comm)->flush(data[0], sizes[0], request);
}

int test(void* request, int* done, int* sizes) {
  if (request == nullptr || done == nullptr) return abi::kInternalError;
  auto* posted = static_cast<Request*>(request);
  return posted->comm->test(*posted, done, sizes);
}

int close_send(void* comm) {
  end_stale_attempts();
  delete static_cast<SendComm*>(comm);
  return abi::kSuccess;
}

int close_recv(void* comm) {
  end_stale_attempts();
  delete static_cast<RecvComm*>(comm);
  return abi::kSuccess;
}

int close_listen(void* comm) {
  end_stale_attempts();
  delete static_cast<Listener*>(comm);
  return abi::kSuccess;
}

int get_device_mr(void* /*comm*/, void* /*mhandle*/, void** /*pointer*/) { return abi::kSuccess; }

int irecv_consumed(void* comm, int count, void* request) {
  if (comm == nullptr || count != 1) return abi::kInternalError;
  return static_cast<RecvComm*>(comm)->consumed(static_cast<Request*>(request));
}

}  // namespace
}  // namespace softnet

extern "C" __attribute__((visibility("default"))) const p2p::nccl_net::abi::v7::Table ncclNetPlugin_v7;

const p2p::nccl_net::abi::v7::Table ncclNetPlugin_v7 = {
    .name = softnet::name_at_load(),
    .init = softnet::init,
    .devices = softnet::devices,
    .get_properties = softnet::get_properties,
    .listen = softnet::listen,
    .connect = softnet::connect,
    .accept = softnet::accept,
    .reg_mr = softnet::reg_mr,
    .reg_mr_dma_buf = nullptr,
    .dereg_mr = softnet::dereg_mr,
    .isend = softnet::isend,
    .irecv = softnet::irecv,
    .iflush = softnet::iflush,
    .test = softnet::test,
    .close_send = softnet::close_send,
    .close_recv = softnet::close_recv,
    .close_listen = softnet::close_listen,
    .get_device_mr = softnet::get_device_mr,
    .irecv_consumed = softnet::tcpxo_at_load() ? nullptr : softnet::irecv_consumed,
};

/// By this a host knows, whatever the plugin calls itself, that it may register host memory as a device's.
// NOLINTBEGIN(readability-identifier-naming): a C symbol
extern "C" __attribute__((visibility("default"))) const int softnet_pool_in_host_memory;

const int softnet_pool_in_host_memory = 1;
// NOLINTEND(readability-identifier-naming)
