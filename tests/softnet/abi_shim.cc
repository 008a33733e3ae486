// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include <cstring>

#include "drivers/nccl_net/abi/v7.h"
#include SHIM_HEADER

/// A net plugin of version SHIM_VERSION (v5 to v12) that moves bytes: each call goes to softnet's v7. Where
/// versions differ in a function there is an overload, and the member of the table picks its own. Arguments
/// that softnet has none for must be as hosts give them, or the call is refused.
namespace {

namespace abi = p2p::nccl_net::abi;
namespace version = p2p::nccl_net::abi::SHIM_VERSION;

constexpr int kRefused = abi::kInvalidArgument;
char context;

const abi::v7::Table& soft() {
  static const auto* const table = static_cast<const abi::v7::Table*>(
      ::dlsym(::dlopen(SOFTNET_PATH, RTLD_NOW | RTLD_LOCAL), "ncclNetPlugin_v7"));
  return *table;
}

/// The members of the table, whichever this version has.
struct Calls {
  static int init(abi::Logger logger) { return soft().init(logger); }
  static int init(abi::Logger logger, abi::ProfilerCallback profiler) {
    return profiler == nullptr ? kRefused : init(logger);
  }
  static int init(void** made, std::uint64_t /*comm_id*/, abi::Config* config, abi::Logger logger,
                  abi::ProfilerCallback profiler) {
    if (config == nullptr || config->traffic_class != abi::kTrafficClassUndefined) return kRefused;
    *made = &context;
    return init(logger, profiler);
  }

  static int get_properties(int device, version::Properties* properties) {
    abi::v7::Properties of_soft;
    const int code = soft().get_properties(device, &of_soft);
    if (code != abi::kSuccess) return code;
    // A host that gives a smaller structure than the version's is found out.
    std::memset(properties, 0, sizeof *properties);
    properties->name = of_soft.name;
    properties->pci_path = of_soft.pci_path;
    properties->guid = of_soft.guid;
    properties->pointer_support = of_soft.pointer_support;
    properties->speed = of_soft.speed;
    properties->port = of_soft.port;
    properties->max_comms = of_soft.max_comms;
    properties->max_receives = of_soft.max_receives;
    const auto device_type = [&](auto& to) {
      if constexpr (requires { to.device_type; }) {
        to.device_type = of_soft.device_type;
        to.device_version = of_soft.device_version;
      }
    };
    device_type(*properties);
    return code;
  }

  static int listen(int device, void* handle, void** comm) { return soft().listen(device, handle, comm); }
  static int listen(void* given, int device, void* handle, void** comm) {
    return given == &context ? listen(device, handle, comm) : kRefused;
  }

  static int connect(int device, void* handle, void** comm, abi::DeviceHandle** device_handle) {
    return soft().connect(device, handle, comm, device_handle);
  }
  static int connect(int device, void* handle, void** comm) {
    abi::DeviceHandle unused{};
    abi::DeviceHandle* device_handle = &unused;
    return connect(device, handle, comm, &device_handle);
  }
  static int connect(int device, abi::Config* config, void* handle, void** comm,
                     abi::DeviceHandle** device_handle) {
    return config == nullptr ? kRefused : connect(device, handle, comm, device_handle);
  }
  static int connect(void* given, int device, void* handle, void** comm, abi::DeviceHandle** device_handle) {
    return given == &context ? connect(device, handle, comm, device_handle) : kRefused;
  }

  static int accept(void* listener, void** comm, abi::DeviceHandle** device_handle) {
    return soft().accept(listener, comm, device_handle);
  }
  static int accept(void* listener, void** comm) {
    abi::DeviceHandle unused{};
    abi::DeviceHandle* device_handle = &unused;
    return accept(listener, comm, &device_handle);
  }

  static int reg_mr(void* comm, void* data, int size, int type, void** mhandle) {
    return soft().reg_mr(comm, data, size, type, mhandle);
  }
  static int reg_mr(void* comm, void* data, std::size_t size, int type, void** mhandle) {
    return reg_mr(comm, data, static_cast<int>(size), type, mhandle);
  }

  static int isend(void* comm, void* data, int size, int tag, void* mhandle, void** request) {
    return soft().isend(comm, data, size, tag, mhandle, request);
  }
  static int isend(void* comm, void* data, std::size_t size, int tag, void* mhandle, void** request) {
    return isend(comm, data, static_cast<int>(size), tag, mhandle, request);
  }
  static int isend(void* comm, void* data, std::size_t size, int tag, void* mhandle, void* /*profiler*/,
                   void** request) {
    return isend(comm, data, size, tag, mhandle, request);
  }

  static int irecv(void* comm, int count, void** data, int* sizes, int* tags, void** mhandles,
                   void** request) {
    return soft().irecv(comm, count, data, sizes, tags, mhandles, request);
  }
  static int irecv(void* comm, int count, void** data, std::size_t* sizes, int* tags, void** mhandles,
                   void** request) {
    auto size = static_cast<int>(sizes[0]);
    return count == 1 ? irecv(comm, 1, data, &size, tags, mhandles, request) : kRefused;
  }
  static int irecv(void* comm, int count, void** data, std::size_t* sizes, int* tags, void** mhandles,
                   void** profilers, void** request) {
    return profilers == nullptr ? kRefused : irecv(comm, count, data, sizes, tags, mhandles, request);
  }

  static int devices(int* count) { return soft().devices(count); }
};

template <class Table>
Table make() {
  Table table{.name = "shim",
              .init = Calls::init,
              .devices = Calls::devices,
              .get_properties = Calls::get_properties};
  table.listen = Calls::listen;
  table.connect = Calls::connect;
  table.accept = Calls::accept;
  table.reg_mr = Calls::reg_mr;
  table.isend = Calls::isend;
  table.irecv = Calls::irecv;
  table.dereg_mr = soft().dereg_mr;
  table.iflush = soft().iflush;
  table.test = soft().test;
  table.close_send = soft().close_send;
  table.close_recv = soft().close_recv;
  table.close_listen = soft().close_listen;
  if constexpr (requires { table.irecv_consumed; }) table.irecv_consumed = soft().irecv_consumed;
  return table;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) version::Table SHIM_SYMBOL;
version::Table SHIM_SYMBOL = make<version::Table>();
