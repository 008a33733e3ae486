// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/nccl_net/guarded.h"

#include <utility>

#include "base/mutex.h"
#include "drivers/nccl_net/sigpipe.h"

namespace p2p::nccl_net {
namespace {

class Guarded final : public Net {
 public:
  explicit Guarded(std::unique_ptr<Net> net) : net_(std::move(net)) {}

  int version() const override { return net_->version(); }
  const char* name() const override { return net_->name(); }
  const char* missing_member() const override { return net_->missing_member(); }
  std::size_t max_message_bytes() const override { return net_->max_message_bytes(); }
  std::size_t max_registration_bytes() const override { return net_->max_registration_bytes(); }
  bool has_flush() const override { return net_->has_flush(); }
  bool has_consumed() const override { return net_->has_consumed(); }

  int init(abi::Logger logger) override {
    return alone([&] { return net_->init(logger); });
  }
  int listen(int device, void* handle, void** listen_comm) override {
    return alone([&] { return net_->listen(device, handle, listen_comm); });
  }
  int connect(int device, void* handle, void** send_comm, abi::DeviceHandle** device_handle) override {
    return alone([&] { return net_->connect(device, handle, send_comm, device_handle); });
  }
  int accept(void* listen_comm, void** recv_comm, abi::DeviceHandle** device_handle) override {
    return alone([&] { return net_->accept(listen_comm, recv_comm, device_handle); });
  }
  int close_send(void* comm) override {
    return alone([&] { return net_->close_send(comm); });
  }
  int close_recv(void* comm) override {
    return alone([&] { return net_->close_recv(comm); });
  }
  int close_listen(void* comm) override {
    return alone([&] { return net_->close_listen(comm); });
  }

  int devices(int* count) override { return net_->devices(count); }
  int properties(int device, Properties& properties) override { return net_->properties(device, properties); }
  int register_memory(void* comm, void* data, std::size_t size, int type, void** mhandle) override {
    return net_->register_memory(comm, data, size, type, mhandle);
  }
  int deregister_memory(void* comm, void* mhandle) override { return net_->deregister_memory(comm, mhandle); }

  int isend(void* comm, void* data, std::size_t size, int tag, void* mhandle, void** request) override {
    const NoSigpipe quiet;
    return net_->isend(comm, data, size, tag, mhandle, request);
  }
  int irecv(void* comm, void* data, std::size_t size, int tag, void* mhandle, void** request) override {
    const NoSigpipe quiet;
    return net_->irecv(comm, data, size, tag, mhandle, request);
  }
  int test(void* request, int* done, int* size) override {
    const NoSigpipe quiet;
    return net_->test(request, done, size);
  }
  int iflush(void* comm, void* data, std::size_t size, void* mhandle, void** request) override {
    const NoSigpipe quiet;
    return net_->iflush(comm, data, size, mhandle, request);
  }
  int irecv_consumed(void* comm, void* request) override {
    const NoSigpipe quiet;
    return net_->irecv_consumed(comm, request);
  }

 private:
  template <class Call>
  int alone(Call&& call) {
    const NoSigpipe quiet;
    const MutexLock lock(mutex_);
    return call();
  }

  Mutex mutex_;
  const std::unique_ptr<Net> net_;
};

}  // namespace

std::unique_ptr<Net> guarded(std::unique_ptr<Net> net) { return std::make_unique<Guarded>(std::move(net)); }

}  // namespace p2p::nccl_net
