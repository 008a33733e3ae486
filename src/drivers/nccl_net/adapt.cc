// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>

#include <limits>
#include <memory>
#include <type_traits>

#include "drivers/nccl_net/abi/v10.h"
#include "drivers/nccl_net/abi/v11.h"
#include "drivers/nccl_net/abi/v12.h"
#include "drivers/nccl_net/abi/v5.h"
#include "drivers/nccl_net/abi/v6.h"
#include "drivers/nccl_net/abi/v7.h"
#include "drivers/nccl_net/abi/v8.h"
#include "drivers/nccl_net/abi/v9.h"
#include "drivers/nccl_net/net.h"

namespace p2p::nccl_net {
namespace {

int ignore_event(void** /*event*/, int /*type*/, void* /*parent*/, std::int64_t /*plugin*/, void* /*extra*/) {
  return abi::kSuccess;
}

/// Translates one version's table. Members are read at each call and never before `init`, which may fill in
/// the table. Where versions differ in shape, the version number decides, so that each call is checked
/// against that version's own declaration.
template <class Table, class PropertiesOfVersion, int kVersion>
class Adapted final : public Net {
 public:
  explicit Adapted(void* table) : table_(static_cast<Table*>(table)) {}

  int version() const override { return kVersion; }
  const char* name() const override { return table_->name; }

  int init(abi::Logger logger) override {
    if constexpr (kVersion >= 11) {
      return table_->init(&context_, 0, &config_, logger, ignore_event);
    } else if constexpr (kVersion == 10) {
      return table_->init(logger, ignore_event);
    } else {
      return table_->init(logger);
    }
  }

  const char* missing_member() const override {
    if (table_->devices == nullptr) return "devices";
    if (table_->get_properties == nullptr) return "getProperties";
    if (table_->listen == nullptr) return "listen";
    if (table_->connect == nullptr) return "connect";
    if (table_->accept == nullptr) return "accept";
    if (table_->reg_mr == nullptr) return "regMr";
    if (table_->dereg_mr == nullptr) return "deregMr";
    if (table_->isend == nullptr) return "isend";
    if (table_->irecv == nullptr) return "irecv";
    if (table_->test == nullptr) return "test";
    if (table_->close_send == nullptr) return "closeSend";
    if (table_->close_recv == nullptr) return "closeRecv";
    if (table_->close_listen == nullptr) return "closeListen";
    return nullptr;
  }

  std::size_t max_message_bytes() const override { return std::numeric_limits<MessageSize>::max(); }
  std::size_t max_registration_bytes() const override { return std::numeric_limits<RegistrationSize>::max(); }

  int devices(int* count) override { return table_->devices(count); }

  int properties(int device, Properties& properties) override {
    PropertiesOfVersion theirs{};
    const int code = table_->get_properties(device, &theirs);
    if (code != abi::kSuccess) return code;
    properties = {};
    if (theirs.name != nullptr) properties.name = theirs.name;
    if (theirs.pci_path != nullptr) properties.pci_path = theirs.pci_path;
    properties.guid = theirs.guid;
    properties.pointer_support = theirs.pointer_support;
    properties.speed = theirs.speed;
    properties.port = theirs.port;
    properties.latency = theirs.latency;
    properties.max_comms = theirs.max_comms;
    properties.max_receives = theirs.max_receives;
    if constexpr (kVersion >= 7) {
      properties.device_type = theirs.device_type;
      properties.device_version = theirs.device_version;
    }
    return code;
  }

  int listen(int device, void* handle, void** listen_comm) override {
    if constexpr (kVersion >= 11) {
      return table_->listen(context_, device, handle, listen_comm);
    } else {
      return table_->listen(device, handle, listen_comm);
    }
  }

  int connect(int device, void* handle, void** send_comm, abi::DeviceHandle** device_handle) override {
    if constexpr (kVersion >= 11) {
      return table_->connect(context_, device, handle, send_comm, device_handle);
    } else if constexpr (kVersion == 10) {
      return table_->connect(device, &config_, handle, send_comm, device_handle);
    } else if constexpr (kVersion >= 7) {
      return table_->connect(device, handle, send_comm, device_handle);
    } else {
      return table_->connect(device, handle, send_comm);
    }
  }

  int accept(void* listen_comm, void** recv_comm, abi::DeviceHandle** device_handle) override {
    if constexpr (kVersion >= 7) {
      return table_->accept(listen_comm, recv_comm, device_handle);
    } else {
      return table_->accept(listen_comm, recv_comm);
    }
  }

  int register_memory(void* comm, void* data, std::size_t size, int type, void** mhandle) override {
    if (size > max_registration_bytes()) return abi::kInvalidArgument;
    return table_->reg_mr(comm, data, static_cast<RegistrationSize>(size), type, mhandle);
  }

  int deregister_memory(void* comm, void* mhandle) override { return table_->dereg_mr(comm, mhandle); }

  int isend(void* comm, void* data, std::size_t size, int tag, void* mhandle, void** request) override {
    if (size > max_message_bytes()) return abi::kInvalidArgument;
    const auto bytes = static_cast<MessageSize>(size);
    if constexpr (kVersion >= 10) {
      return table_->isend(comm, data, bytes, tag, mhandle, nullptr, request);
    } else {
      return table_->isend(comm, data, bytes, tag, mhandle, request);
    }
  }

  int irecv(void* comm, void* data, std::size_t size, int tag, void* mhandle, void** request) override {
    if (size > max_message_bytes()) return abi::kInvalidArgument;
    auto bytes = static_cast<MessageSize>(size);
    if constexpr (kVersion >= 10) {
      void* profiler_handle = nullptr;
      return table_->irecv(comm, 1, &data, &bytes, &tag, &mhandle, &profiler_handle, request);
    } else {
      return table_->irecv(comm, 1, &data, &bytes, &tag, &mhandle, request);
    }
  }

  int test(void* request, int* done, int* size) override { return table_->test(request, done, size); }

  bool has_flush() const override { return table_->iflush != nullptr; }

  int iflush(void* comm, void* data, std::size_t size, void* mhandle, void** request) override {
    if (size > std::numeric_limits<int>::max()) return abi::kInvalidArgument;
    auto bytes = static_cast<int>(size);
    return table_->iflush(comm, 1, &data, &bytes, &mhandle, request);
  }

  bool has_consumed() const override {
    if constexpr (kVersion >= 7) {
      return table_->irecv_consumed != nullptr;
    } else {
      return false;
    }
  }

  int irecv_consumed(void* comm, void* request) override {
    if constexpr (kVersion >= 7) {
      return table_->irecv_consumed(comm, 1, request);
    } else {
      return abi::kInvalidUsage;
    }
  }

  int close_send(void* comm) override { return table_->close_send(comm); }
  int close_recv(void* comm) override { return table_->close_recv(comm); }
  int close_listen(void* comm) override { return table_->close_listen(comm); }

 private:
  using MessageSize = std::conditional_t<(kVersion >= 9), std::size_t, int>;
  using RegistrationSize = std::conditional_t<(kVersion >= 8), std::size_t, int>;

  Table* table_;
  void* context_ = nullptr;
  abi::Config config_{abi::kTrafficClassUndefined};
};

struct Version {
  const char* symbol;
  std::unique_ptr<Net> (*adapt)(void* table);
};

template <class Table, class PropertiesOfVersion, int kVersion>
std::unique_ptr<Net> adapt(void* table) {
  return std::make_unique<Adapted<Table, PropertiesOfVersion, kVersion>>(table);
}

constexpr Version kVersions[] = {
    {abi::v12::kSymbol, adapt<abi::v12::Table, abi::v12::Properties, 12>},
    {abi::v11::kSymbol, adapt<abi::v11::Table, abi::v11::Properties, 11>},
    {abi::v10::kSymbol, adapt<abi::v10::Table, abi::v10::Properties, 10>},
    {abi::v9::kSymbol, adapt<abi::v9::Table, abi::v9::Properties, 9>},
    {abi::v8::kSymbol, adapt<abi::v8::Table, abi::v8::Properties, 8>},
    {abi::v7::kSymbol, adapt<abi::v7::Table, abi::v7::Properties, 7>},
    {abi::v6::kSymbol, adapt<abi::v6::Table, abi::v6::Properties, 6>},
    {abi::v5::kSymbol, adapt<abi::v5::Table, abi::v5::Properties, 5>},
};

}  // namespace

// As NCCL itself looks.
std::unique_ptr<Net> adapt_newest(void* library) {
  for (const Version& version : kVersions) {
    if (void* const table = ::dlsym(library, version.symbol)) return version.adapt(table);
  }
  return nullptr;
}

}  // namespace p2p::nccl_net
