// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "drivers/nccl_net/abi/types.h"

namespace p2p::nccl_net {

/// What a plugin says of a device, whatever its version. Fields that a version lacks keep their defaults.
struct Properties {
  std::string name;      ///< empty: the plugin gave none
  std::string pci_path;  ///< in sysfs; empty: the plugin gave none
  std::uint64_t guid = 0;
  int pointer_support = 0;  ///< bits of abi::PointerType
  int speed = 0;            ///< Mbit/s
  int port = 0;
  float latency = 0;
  int max_comms = 0;
  int max_receives = 1;
  int device_type = abi::kDeviceHost;
  int device_version = 0;

  bool takes_cuda() const { return (pointer_support & abi::kPointerCuda) != 0; }
  bool unpacks() const { return device_type == abi::kDeviceUnpack && device_version == abi::kUnpackVersion; }
};

/// The one table that every version of the ABI is translated to. Functions return the plugin's code;
/// sizes that a version cannot carry give abi::kInvalidArgument without a call. As thread-safe as the plugin:
/// one thread at a time a comm.
class Net {
 public:
  virtual ~Net() = default;

  virtual int version() const = 0;
  virtual const char* name() const = 0;
  virtual int init(abi::Logger logger) = 0;

  /// The first member that must be there and is not, once `init` has been called; null: none.
  virtual const char* missing_member() const = 0;

  virtual std::size_t max_message_bytes() const = 0;
  virtual std::size_t max_registration_bytes() const = 0;

  virtual int devices(int* count) = 0;
  virtual int properties(int device, Properties& properties) = 0;

  /// `handle`: abi::kHandleBytes. Connect and accept answer 0 with a null comm until there is one.
  virtual int listen(int device, void* handle, void** listen_comm) = 0;
  virtual int connect(int device, void* handle, void** send_comm, abi::DeviceHandle** device_handle) = 0;
  virtual int accept(void* listen_comm, void** recv_comm, abi::DeviceHandle** device_handle) = 0;

  virtual int register_memory(void* comm, void* data, std::size_t size, int type, void** mhandle) = 0;
  virtual int deregister_memory(void* comm, void* mhandle) = 0;

  virtual int isend(void* comm, void* data, std::size_t size, int tag, void* mhandle, void** request) = 0;
  virtual int irecv(void* comm, void* data, std::size_t size, int tag, void* mhandle, void** request) = 0;
  virtual int test(void* request, int* done, int* size) = 0;

  /// Whether receives into CUDA memory are to be flushed once they are done, before anyone reads the bytes.
  virtual bool has_flush() const = 0;

  /// Of one receive. A null request: there is nothing to wait for.
  virtual int iflush(void* comm, void* data, std::size_t size, void* mhandle, void** request) = 0;

  /// False: receives end when they are done.
  virtual bool has_consumed() const = 0;
  virtual int irecv_consumed(void* comm, void* request) = 0;

  virtual int close_send(void* comm) = 0;
  virtual int close_recv(void* comm) = 0;
  virtual int close_listen(void* comm) = 0;
};

/// The table of the newest version that we know among those of an open library, which is never closed. Null:
/// it has none.
std::unique_ptr<Net> adapt_newest(void* library);

}  // namespace p2p::nccl_net
