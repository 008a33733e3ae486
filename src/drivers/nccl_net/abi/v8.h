// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "drivers/nccl_net/abi/types.h"

/// The net plugin ABI as of NCCL 2.20: 64-bit registrations.
namespace p2p::nccl_net::abi::v8 {

inline constexpr char kSymbol[] = "ncclNetPlugin_v8";

struct Properties {
  char* name;
  char* pci_path;
  std::uint64_t guid;
  int pointer_support;
  int registration_is_global;
  int speed;  ///< Mbit/s
  int port;
  float latency;
  int max_comms;
  int max_receives;
  int device_type;
  int device_version;
};
static_assert(sizeof(Properties) == 64);
static_assert(offsetof(Properties, pointer_support) == 24);
static_assert(offsetof(Properties, registration_is_global) == 28);
static_assert(offsetof(Properties, speed) == 32);
static_assert(offsetof(Properties, port) == 36);
static_assert(offsetof(Properties, latency) == 40);
static_assert(offsetof(Properties, max_comms) == 44);
static_assert(offsetof(Properties, max_receives) == 48);
static_assert(offsetof(Properties, device_type) == 52);
static_assert(offsetof(Properties, device_version) == 56);

struct Table {
  const char* name;
  int (*init)(Logger logger);
  int (*devices)(int* count);
  int (*get_properties)(int device, Properties* properties);
  int (*listen)(int device, void* handle, void** listen_comm);
  int (*connect)(int device, void* handle, void** send_comm, DeviceHandle** device_handle);
  int (*accept)(void* listen_comm, void** recv_comm, DeviceHandle** device_handle);
  int (*reg_mr)(void* comm, void* data, std::size_t size, int type, void** mhandle);
  int (*reg_mr_dma_buf)(void* comm, void* data, std::size_t size, int type, std::uint64_t offset, int fd,
                        void** mhandle);
  int (*dereg_mr)(void* comm, void* mhandle);
  int (*isend)(void* send_comm, void* data, int size, int tag, void* mhandle, void** request);
  int (*irecv)(void* recv_comm, int count, void** data, int* sizes, int* tags, void** mhandles,
               void** request);
  int (*iflush)(void* recv_comm, int count, void** data, int* sizes, void** mhandles, void** request);
  int (*test)(void* request, int* done, int* sizes);
  int (*close_send)(void* send_comm);
  int (*close_recv)(void* recv_comm);
  int (*close_listen)(void* listen_comm);
  int (*get_device_mr)(void* comm, void* mhandle, void** device_pointer);
  int (*irecv_consumed)(void* recv_comm, int count, void* request);
};
static_assert(sizeof(Table) == 152);
static_assert(offsetof(Table, reg_mr) == 56 && offsetof(Table, test) == 104);
static_assert(offsetof(Table, irecv_consumed) == 144);

}  // namespace p2p::nccl_net::abi::v8
