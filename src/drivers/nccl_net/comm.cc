// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/nccl_net/comm.h"

#include <cstring>
#include <utility>

#include "base/error.h"
#include "drivers/nccl_net/listen_comm.h"
#include "drivers/nccl_net/tcpx.h"
#include "drivers/nccl_net/tcpxo.h"

namespace p2p::nccl_net {
namespace {
constexpr std::uintptr_t kPage = 4096;
}

Comm::Comm(std::shared_ptr<Plugin> plugin, const Device& device, Kind kind, void* raw)
    : plugin_(std::move(plugin)),
      device_(device.label()),
      registers_cuda_(check_registers_cuda(*plugin_, device)),
      kind_(kind),
      raw_(raw) {}

Comm::~Comm() { kind_ == Kind::kSend ? net().close_send(raw_) : net().close_recv(raw_); }

MemoryHandle::MemoryHandle(std::shared_ptr<Comm> comm, void* raw, MemoryRange range, abi::PointerType type)
    : comm_(std::move(comm)), raw_(raw), data_(range.data), size_(range.size), type_(type) {}

MemoryHandle::MemoryHandle(MemoryHandle&& other) noexcept
    : comm_(std::move(other.comm_)),
      raw_(std::exchange(other.raw_, nullptr)),
      data_(other.data_),
      size_(other.size_),
      type_(other.type_) {}

MemoryHandle& MemoryHandle::operator=(MemoryHandle&& other) noexcept {
  std::swap(comm_, other.comm_);
  std::swap(raw_, other.raw_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(type_, other.type_);
  return *this;
}

MemoryHandle::~MemoryHandle() {
  if (comm_ && raw_ != nullptr) comm_->net().deregister_memory(comm_->raw(), raw_);
}

bool MemoryHandle::covers(const std::byte* data, std::size_t size) const {
  const auto start = reinterpret_cast<std::uintptr_t>(data);
  const auto base = reinterpret_cast<std::uintptr_t>(data_);
  return start >= base && start - base <= size_ && size <= size_ - (start - base);
}

MemoryRange page_range(std::byte* data, std::size_t size) {
  const auto start = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t before = start % kPage;
  const std::size_t whole = (before + size + kPage - 1) / kPage * kPage;
  return {data - before, whole};
}

Result<MemoryHandle> register_with(const std::shared_ptr<Comm>& comm, std::byte* data, std::size_t size,
                                   abi::PointerType type) {
  const auto what = [&] {
    return fmt::format("register {} ({} bytes, {}) with {}", static_cast<void*>(data), size,
                       type == abi::kPointerCuda ? "CUDA" : "host", comm->device());
  };
  if (size > comm->net().max_registration_bytes()) {
    return fail(ErrorCode::kUnavailable, "{}: ABI v{} takes less than 2 GiB", what(), comm->net().version());
  }
  if (type == abi::kPointerCuda && !comm->registers_cuda()) {
    return fail(comm->registers_cuda().error().code, "{}: {}", what(),
                comm->registers_cuda().error().message);
  }
  void* raw = nullptr;
  const int code = comm->net().register_memory(comm->raw(), data, size, type, &raw);
  if (code != abi::kSuccess) return tl::unexpected(plugin_error(code, what()));
  return MemoryHandle(comm, raw, {data, size}, type);
}

Status copy_from_host(void* to, const void* from, std::size_t size) {
  std::memcpy(to, from, size);
  return {};
}

struct Listener::State {
  std::unique_ptr<ListenComm> comm;
  CopyOut copy;

  ~State() { ListenComm::release(std::move(comm)); }

  Result<std::optional<UnpackArea>> unpack_area() const {
    const abi::DeviceHandle& given = comm->device_handle();
    const std::string device = comm->device().label();
    if (given.type != abi::kDeviceUnpack) return std::nullopt;
    if (given.version != abi::kUnpackVersion || given.handle == nullptr ||
        given.size < sizeof(abi::UnpackDevice)) {
      return fail(ErrorCode::kUnavailable, "accept on {}: an UNPACK device handle of version {} and {} bytes",
                  device, given.version, given.size);
    }
    abi::UnpackDevice unpack{};
    if (auto copied = copy(&unpack, given.handle, sizeof unpack); !copied) {
      return tl::unexpected(copied.error());
    }
    if (unpack.lists == nullptr || unpack.pool == nullptr) {
      return fail(ErrorCode::kUnavailable, "accept on {}: the UNPACK device handle has no lists or no pool",
                  device);
    }
    return UnpackArea{unpack.lists, unpack.pool};
  }
};

Listener::Listener(std::unique_ptr<State> state) : state_(std::move(state)) {}
Listener::Listener(Listener&&) noexcept = default;
Listener& Listener::operator=(Listener&&) noexcept = default;
Listener::~Listener() = default;

const Handle& Listener::handle() const { return state_->comm->handle(); }

Result<Listener> Listener::open(std::shared_ptr<Plugin> plugin, const Device& device, CopyOut copy, int gpu) {
  auto comm = ListenComm::open(std::move(plugin), device, gpu);
  if (!comm) return tl::unexpected(comm.error());
  return Listener(std::make_unique<State>(std::move(*comm), std::move(copy)));
}

Result<std::optional<RecvComm>> Listener::poll() {
  ListenComm& comm = *state_->comm;
  if (comm.over()) {
    return fail(ErrorCode::kInvalidArgument, "accept on {}: this listener has had its one connection",
                comm.device().label());
  }
  void* raw = nullptr;
  const int code = comm.accept(&raw);
  if (code != abi::kSuccess) {
    return tl::unexpected(plugin_error(code, fmt::format("accept on {}", comm.device().label())));
  }
  if (raw == nullptr) return std::nullopt;
  RecvComm made{std::make_shared<Comm>(comm.plugin(), comm.device(), Comm::Kind::kReceive, raw),
                std::nullopt};
  auto area = state_->unpack_area();
  if (!area) return tl::unexpected(area.error());
  made.unpack = *area;
  return made;
}

struct Connector::State {
  std::shared_ptr<Plugin> plugin;
  Device device;
  bool checked = false;
  Handle handle{};  // plugins keep their state in it between calls
  bool over = false;

  /// And takes out of the handle what the peer has no business to say.
  Status check() {
    const std::string name = plugin->name();
    if (std::exchange(checked, true) || !is_gpudirect(name)) return {};
    over = true;
    const auto own = plugin->own_handle(device);
    if (!own) return tl::unexpected(own.error());
    handle = handle_from_peer(handle, *own, name);
    Status good = check_handle(handle, *own, name);
    over = !good;
    return good;
  }
};

Connector::Connector(const std::shared_ptr<Plugin>& plugin, const Device& device, const Handle& handle)
    : state_(new State{plugin, device, false, handle}) {}
Connector::Connector(Connector&&) noexcept = default;
Connector& Connector::operator=(Connector&&) noexcept = default;
Connector::~Connector() = default;

Result<std::optional<SendComm>> Connector::poll() {
  State& state = *state_;
  if (state.over) {
    return fail(ErrorCode::kInvalidArgument, "connect from {}: this attempt is over", state.device.label());
  }
  if (auto good = state.check(); !good) return tl::unexpected(good.error());
  void* raw = nullptr;
  abi::DeviceHandle device_storage{};
  abi::DeviceHandle* device_handle = &device_storage;
  const int code = state.plugin->net().connect(state.device.index, state.handle.data(), &raw, &device_handle);
  state.over = code != abi::kSuccess || raw != nullptr;
  if (code != abi::kSuccess) {
    return tl::unexpected(plugin_error(code, fmt::format("connect from {}", state.device.label())));
  }
  if (raw == nullptr) return std::nullopt;
  return SendComm{std::make_shared<Comm>(state.plugin, state.device, Comm::Kind::kSend, raw)};
}

}  // namespace p2p::nccl_net
