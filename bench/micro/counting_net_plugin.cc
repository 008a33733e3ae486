// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// A net plugin of ABI v7 that moves next to nothing: the n-th send of a comm meets the n-th receive at once,
// and only short messages' bytes go along. What a host spends on top of a plugin is what is left. Its devices
// are of type UNPACK; each long receive is listed as 128 fragments that lie apart.
#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "drivers/nccl_net/abi/unpack.h"
#include "drivers/nccl_net/abi/v7.h"

namespace counting {
namespace {

namespace abi = p2p::nccl_net::abi;

constexpr int kCarried = 64;  // bytes up to which a message is really copied
constexpr std::uint64_t kFragments = 128;
constexpr std::size_t kPoolBytes = std::size_t{1} << 20;

struct Message {
  const std::byte* data;
  int size;
};

/// One direction between two comms.
struct Pipe {
  std::mutex mutex;
  std::deque<Message> sent;
};

struct Request {
  struct Comm* receiver = nullptr;  ///< null: a send, which has ended when it was posted
  int size = 0;
};

struct Comm {
  std::shared_ptr<Pipe> pipe;
  std::unique_ptr<abi::UnpackLists> lists;
  std::vector<std::byte> pool;
  abi::UnpackDevice device{};
  std::array<Request, abi::kUnpackSlots> requests;
  std::uint64_t posted = 0;
  std::uint64_t done = 0;
};

std::mutex pipes_mutex;
std::map<std::uint64_t, std::shared_ptr<Pipe>> pipes;

char device_name[] = "counting0";

int init(abi::Logger /*logger*/) { return abi::kSuccess; }

int devices(int* count) {
  *count = 1;
  return abi::kSuccess;
}

int get_properties(int /*device*/, abi::v7::Properties* properties) {
  *properties = {};
  properties->name = device_name;
  properties->pointer_support = abi::kPointerHost | abi::kPointerCuda;
  properties->speed = 200000;
  properties->max_comms = 1024;
  properties->max_receives = 1;
  properties->device_type = abi::kDeviceUnpack;
  properties->device_version = abi::kUnpackVersion;
  return abi::kSuccess;
}

int listen(int /*device*/, void* handle, void** comm) {
  const std::lock_guard lock(pipes_mutex);
  const std::uint64_t number = pipes.size() + 1;
  pipes[number] = std::make_shared<Pipe>();
  std::memset(handle, 0, abi::kHandleBytes);
  std::memcpy(handle, &number, sizeof number);
  *comm = new std::shared_ptr<Pipe>(pipes[number]);
  return abi::kSuccess;
}

int connect(int /*device*/, void* handle, void** comm, abi::DeviceHandle** /*device_handle*/) {
  std::uint64_t number = 0;
  std::memcpy(&number, handle, sizeof number);
  const std::lock_guard lock(pipes_mutex);
  const auto found = pipes.find(number);
  if (found == pipes.end()) return abi::kInvalidArgument;
  auto made = std::make_unique<Comm>();
  made->pipe = found->second;
  *comm = made.release();
  return abi::kSuccess;
}

int accept(void* listener, void** comm, abi::DeviceHandle** device_handle) {
  auto made = std::make_unique<Comm>();
  made->pipe = *static_cast<std::shared_ptr<Pipe>*>(listener);
  made->lists = std::make_unique<abi::UnpackLists>();
  made->pool.resize(kPoolBytes);
  made->device = {made->lists.get(), made->pool.data(), ~std::uint64_t{0}};
  **device_handle = {abi::kDeviceUnpack, abi::kUnpackVersion, &made->device, sizeof made->device, 1};
  *comm = made.release();
  return abi::kSuccess;
}

int reg_mr(void* comm, void* /*data*/, int /*size*/, int /*type*/, void** mhandle) {
  *mhandle = comm;
  return abi::kSuccess;
}

int dereg_mr(void* /*comm*/, void* /*mhandle*/) { return abi::kSuccess; }

int isend(void* raw, void* data, int size, int /*tag*/, void* /*mhandle*/, void** request) {
  Comm& comm = *static_cast<Comm*>(raw);
  {
    const std::lock_guard lock(comm.pipe->mutex);
    comm.pipe->sent.push_back({static_cast<const std::byte*>(data), size});
  }
  *request = &comm.requests[comm.posted++ % comm.requests.size()];
  return abi::kSuccess;
}

int irecv(void* raw, int /*count*/, void** /*data*/, int* sizes, int* /*tags*/, void** /*mhandles*/,
          void** request) {
  Comm& comm = *static_cast<Comm*>(raw);
  Request& slot = comm.requests[comm.posted++ % comm.requests.size()];
  slot = {&comm, sizes[0]};
  *request = &slot;
  return abi::kSuccess;
}

/// Where a message lies: its first bytes are copied, the rest only listed.
void list(Comm& comm, const Message& message) {
  const std::size_t slot = comm.done % abi::kUnpackSlots;
  const auto size = static_cast<std::uint64_t>(message.size);
  if (size <= kCarried) {
    std::memcpy(comm.pool.data(), message.data, size);
    comm.lists->entries[slot][0] = {0, static_cast<std::uint32_t>(size), 0};
  }
  const std::uint64_t count = size <= kCarried ? (size != 0 ? 1 : 0) : kFragments;
  for (std::uint64_t i = 0; count > 1 && i < count; ++i) {
    const std::uint64_t from = size * i / count;
    // Twice as far apart as they are long, so that neighbours do not merge.
    comm.lists->entries[slot][i] = {static_cast<std::uint32_t>(2 * from % (kPoolBytes / 2)),
                                    static_cast<std::uint32_t>(size * (i + 1) / count - from), from};
  }
  std::atomic_ref(comm.lists->count[slot]).store(count, std::memory_order_release);
}

int test(void* raw, int* done, int* /*sizes*/) {
  Request& request = *static_cast<Request*>(raw);
  *done = request.receiver == nullptr ? 1 : 0;
  if (*done != 0) return abi::kSuccess;
  Comm& comm = *request.receiver;
  const std::lock_guard lock(comm.pipe->mutex);
  if (comm.pipe->sent.empty()) return abi::kSuccess;
  list(comm, comm.pipe->sent.front());
  comm.pipe->sent.pop_front();
  ++comm.done;
  *done = 1;
  return abi::kSuccess;
}

int irecv_consumed(void* /*comm*/, int /*count*/, void* /*request*/) { return abi::kSuccess; }

int close_comm(void* comm) {
  delete static_cast<Comm*>(comm);
  return abi::kSuccess;
}

int close_listen(void* listener) {
  delete static_cast<std::shared_ptr<Pipe>*>(listener);
  return abi::kSuccess;
}

}  // namespace
}  // namespace counting

extern "C" __attribute__((visibility("default"))) const p2p::nccl_net::abi::v7::Table ncclNetPlugin_v7;

const p2p::nccl_net::abi::v7::Table ncclNetPlugin_v7 = {
    .name = "counting",
    .init = counting::init,
    .devices = counting::devices,
    .get_properties = counting::get_properties,
    .listen = counting::listen,
    .connect = counting::connect,
    .accept = counting::accept,
    .reg_mr = counting::reg_mr,
    .reg_mr_dma_buf = nullptr,
    .dereg_mr = counting::dereg_mr,
    .isend = counting::isend,
    .irecv = counting::irecv,
    .iflush = nullptr,
    .test = counting::test,
    .close_send = counting::close_comm,
    .close_recv = counting::close_comm,
    .close_listen = counting::close_listen,
    .get_device_mr = nullptr,
    .irecv_consumed = counting::irecv_consumed,
};
