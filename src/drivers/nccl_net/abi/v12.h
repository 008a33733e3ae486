// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "drivers/nccl_net/abi/types.h"

/// The net plugin ABI as of NCCL 2.30: rails and planes.
namespace p2p::nccl_net::abi::v12 {

inline constexpr char kSymbol[] = "ncclNetPlugin_v12";

struct Properties {
  char* name;
  char* pci_path;
  std::uint64_t guid;
  int pointer_support;
  int registration_is_global;
  int force_flush;
  int speed;  ///< Mbit/s
  int port;
  float latency;
  int max_comms;
  int max_receives;
  int device_type;
  int device_version;
  VirtualDevice<8> virtual_device;
  std::size_t max_p2p_bytes;
  std::size_t max_collective_bytes;
  int max_multi_request_size;
  std::int16_t rail_id;
  std::int16_t plane_id;
};
static_assert(sizeof(Properties) == 128);
static_assert(offsetof(Properties, pointer_support) == 24);
static_assert(offsetof(Properties, registration_is_global) == 28);
static_assert(offsetof(Properties, force_flush) == 32);
static_assert(offsetof(Properties, speed) == 36);
static_assert(offsetof(Properties, port) == 40);
static_assert(offsetof(Properties, latency) == 44);
static_assert(offsetof(Properties, max_comms) == 48);
static_assert(offsetof(Properties, max_receives) == 52);
static_assert(offsetof(Properties, device_type) == 56);
static_assert(offsetof(Properties, device_version) == 60);
static_assert(offsetof(Properties, virtual_device) == 64);
static_assert(offsetof(Properties, max_p2p_bytes) == 104);
static_assert(offsetof(Properties, max_collective_bytes) == 112);
static_assert(offsetof(Properties, max_multi_request_size) == 120);
static_assert(offsetof(Properties, rail_id) == 124);
static_assert(offsetof(Properties, plane_id) == 126);

/// Hints for communicators; opaque here.
struct Attributes;

struct Table {
  const char* name;
  int (*init)(void** context, std::uint64_t comm_id, Config* config, Logger logger,
              ProfilerCallback profiler);
  int (*devices)(int* count);
  int (*get_properties)(int device, Properties* properties);
  int (*listen)(void* context, int device, void* handle, void** listen_comm);
  int (*connect)(void* context, int device, void* handle, void** send_comm, DeviceHandle** device_handle);
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
  int (*make_virtual_device)(int* device, VirtualDevice<8>* members);
  int (*finalize)(void* context);
  int (*set_attributes)(void* context, Attributes* attributes);
};
static_assert(sizeof(Table) == 176);
static_assert(offsetof(Table, reg_mr) == 56 && offsetof(Table, test) == 104);
static_assert(offsetof(Table, irecv_consumed) == 144);

}  // namespace p2p::nccl_net::abi::v12
