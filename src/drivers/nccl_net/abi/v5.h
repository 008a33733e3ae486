// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "drivers/nccl_net/abi/types.h"
#include "drivers/nccl_net/abi/v6.h"

/// The net plugin ABI as of NCCL 2.12.
namespace p2p::nccl_net::abi::v5 {

inline constexpr char kSymbol[] = "ncclNetPlugin_v5";

using Properties = v6::Properties;

struct Table {
  const char* name;
  int (*init)(Logger logger);
  int (*devices)(int* count);
  int (*get_properties)(int device, Properties* properties);
  int (*listen)(int device, void* handle, void** listen_comm);
  int (*connect)(int device, void* handle, void** send_comm);
  int (*accept)(void* listen_comm, void** recv_comm);
  int (*reg_mr)(void* comm, void* data, int size, int type, void** mhandle);
  int (*dereg_mr)(void* comm, void* mhandle);
  int (*isend)(void* send_comm, void* data, int size, int tag, void* mhandle, void** request);
  int (*irecv)(void* recv_comm, int count, void** data, int* sizes, int* tags, void** mhandles,
               void** request);
  int (*iflush)(void* recv_comm, int count, void** data, int* sizes, void** mhandles, void** request);
  int (*test)(void* request, int* done, int* sizes);
  int (*close_send)(void* send_comm);
  int (*close_recv)(void* recv_comm);
  int (*close_listen)(void* listen_comm);
};
static_assert(sizeof(Table) == 128);
static_assert(offsetof(Table, reg_mr) == 56 && offsetof(Table, test) == 96);

}  // namespace p2p::nccl_net::abi::v5
