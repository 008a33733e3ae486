// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "drivers/nccl_net/abi/types.h"
#include "drivers/nccl_net/abi/v9.h"

/// The net plugin ABI as of NCCL 2.26: traffic classes, profiler events.
namespace p2p::nccl_net::abi::v10 {

inline constexpr char kSymbol[] = "ncclNetPlugin_v10";

using Properties = v9::Properties;

struct Table {
  const char* name;
  int (*init)(Logger logger, ProfilerCallback profiler);
  int (*devices)(int* count);
  int (*get_properties)(int device, Properties* properties);
  int (*listen)(int device, void* handle, void** listen_comm);
  int (*connect)(int device, Config* config, void* handle, void** send_comm, DeviceHandle** device_handle);
  int (*accept)(void* listen_comm, void** recv_comm, DeviceHandle** device_handle);
  int (*reg_mr)(void* comm, void* data, std::size_t size, int type, void** mhandle);
  int (*reg_mr_dma_buf)(void* comm, void* data, std::size_t size, int type, std::uint64_t offset, int fd,
                        void** mhandle);
  int (*dereg_mr)(void* comm, void* mhandle);
  int (*isend)(void* send_comm, void* data, std::size_t size, int tag, void* mhandle, void* profiler_handle,
               void** request);
  int (*irecv)(void* recv_comm, int count, void** data, std::size_t* sizes, int* tags, void** mhandles,
               void** profiler_handles, void** request);
  int (*iflush)(void* recv_comm, int count, void** data, int* sizes, void** mhandles, void** request);
  int (*test)(void* request, int* done, int* sizes);
  int (*close_send)(void* send_comm);
  int (*close_recv)(void* recv_comm);
  int (*close_listen)(void* listen_comm);
  int (*get_device_mr)(void* comm, void* mhandle, void** device_pointer);
  int (*irecv_consumed)(void* recv_comm, int count, void* request);
  int (*make_virtual_device)(int* device, VirtualDevice<4>* members);
};
static_assert(sizeof(Table) == 160);
static_assert(offsetof(Table, reg_mr) == 56 && offsetof(Table, test) == 104);
static_assert(offsetof(Table, irecv_consumed) == 144);

}  // namespace p2p::nccl_net::abi::v10
