// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/nccl_net/comm.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "base/error.h"

namespace p2p::nccl_net {
namespace {
constexpr std::uintptr_t kPage = 4096;
}

Comm::Comm(std::shared_ptr<Plugin> plugin, std::string device, Kind kind, void* raw)
    : plugin_(std::move(plugin)), device_(std::move(device)), kind_(kind), raw_(raw) {}

Comm::~Comm() { kind_ == Kind::kSend ? net().close_send(raw_) : net().close_recv(raw_); }

MemoryHandle::MemoryHandle(std::shared_ptr<Comm> comm, void* raw, std::byte* data, std::size_t size)
    : comm_(std::move(comm)), raw_(raw), data_(data), size_(size) {}

MemoryHandle::MemoryHandle(MemoryHandle&& other) noexcept
    : comm_(std::move(other.comm_)),
      raw_(std::exchange(other.raw_, nullptr)),
      data_(other.data_),
      size_(other.size_) {}

MemoryHandle& MemoryHandle::operator=(MemoryHandle&& other) noexcept {
  std::swap(comm_, other.comm_);
  std::swap(raw_, other.raw_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
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

PageRange page_range(std::byte* data, std::size_t size) {
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
  void* raw = nullptr;
  const int code = comm->net().register_memory(comm->raw(), data, size, type, &raw);
  if (code != abi::kSuccess) return tl::unexpected(plugin_error(code, what()));
  return MemoryHandle(comm, raw, data, size);
}

Status copy_from_host(void* to, const void* from, std::size_t size) {
  std::memcpy(to, from, size);
  return {};
}

struct Listener::State {
  std::shared_ptr<Plugin> plugin;
  std::string device;
  CopyOut copy;
  Handle handle{};
  void* raw = nullptr;
  bool over = false;
  // Plugins fill it in accept and may do so late: it stays in one place.
  abi::DeviceHandle device_handle{};

  ~State() {
    if (raw != nullptr) plugin->net().close_listen(raw);
  }

  Result<std::optional<UnpackArea>> unpack_area() const {
    if (device_handle.type != abi::kDeviceUnpack) return std::nullopt;
    if (device_handle.version != abi::kUnpackVersion || device_handle.handle == nullptr ||
        device_handle.size < sizeof(abi::UnpackDevice)) {
      return fail(ErrorCode::kUnavailable, "accept on {}: an UNPACK device handle of version {} and {} bytes",
                  device, device_handle.version, device_handle.size);
    }
    abi::UnpackDevice unpack{};
    if (auto copied = copy(&unpack, device_handle.handle, sizeof unpack); !copied) {
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

const Handle& Listener::handle() const { return state_->handle; }

Result<Listener> Listener::open(std::shared_ptr<Plugin> plugin, const Device& device, CopyOut copy) {
  auto state = std::make_unique<State>();
  state->plugin = std::move(plugin);
  state->device = device.label();
  state->copy = std::move(copy);
  const int code = state->plugin->net().listen(device.index, state->handle.data(), &state->raw);
  if (code != abi::kSuccess) {
    return tl::unexpected(plugin_error(code, fmt::format("listen on {}", state->device)));
  }
  return Listener(std::move(state));
}

Result<std::optional<RecvComm>> Listener::poll() {
  State& state = *state_;
  if (state.over) {
    return fail(ErrorCode::kInvalidArgument, "accept on {}: this listener has had its one connection",
                state.device);
  }
  void* raw = nullptr;
  abi::DeviceHandle* device_handle = &state.device_handle;
  const int code = state.plugin->net().accept(state.raw, &raw, &device_handle);
  state.over = code != abi::kSuccess || raw != nullptr;
  if (code != abi::kSuccess) {
    return tl::unexpected(plugin_error(code, fmt::format("accept on {}", state.device)));
  }
  if (raw == nullptr) return std::nullopt;
  RecvComm made{std::make_shared<Comm>(state.plugin, state.device, Comm::Kind::kReceive, raw), std::nullopt};
  auto area = state.unpack_area();
  if (!area) return tl::unexpected(area.error());
  made.unpack = *area;
  return made;
}

Handle handle_from_peer(Handle handle, std::string_view plugin_name) {
  constexpr std::size_t kTcpxState = 80;
  if (plugin_name.starts_with("GPUDirectTCPX")) {
    std::ranges::fill(std::span(handle).subspan(kTcpxState), std::byte{});
  }
  return handle;
}

struct Connector::State {
  std::shared_ptr<Plugin> plugin;
  int index = 0;
  std::string device;
  Handle handle{};  // plugins keep their state in it between calls
  bool over = false;
};

Connector::Connector(const std::shared_ptr<Plugin>& plugin, const Device& device, const Handle& handle)
    : state_(new State{plugin, device.index, device.label(), handle_from_peer(handle, plugin->name())}) {}
Connector::Connector(Connector&&) noexcept = default;
Connector& Connector::operator=(Connector&&) noexcept = default;
Connector::~Connector() = default;

Result<std::optional<SendComm>> Connector::poll() {
  State& state = *state_;
  if (state.over) {
    return fail(ErrorCode::kInvalidArgument, "connect from {}: this attempt is over", state.device);
  }
  void* raw = nullptr;
  abi::DeviceHandle device_storage{};
  abi::DeviceHandle* device_handle = &device_storage;
  const int code = state.plugin->net().connect(state.index, state.handle.data(), &raw, &device_handle);
  state.over = code != abi::kSuccess || raw != nullptr;
  if (code != abi::kSuccess) {
    return tl::unexpected(plugin_error(code, fmt::format("connect from {}", state.device)));
  }
  if (raw == nullptr) return std::nullopt;
  return SendComm{std::make_shared<Comm>(state.plugin, state.device, Comm::Kind::kSend, raw)};
}

}  // namespace p2p::nccl_net
