// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "drivers/nccl_net/abi/unpack.h"
#include "drivers/nccl_net/handle.h"
#include "drivers/nccl_net/plugin.h"
#include "p2p/result.h"

/// Owning handles over a plugin's comms. A comm, its registrations and its window are used by one thread at
/// a time. Every error names the call and the device.
namespace p2p::nccl_net {

/// A raw comm and how it is closed. Shared by those who need it open.
class Comm {
 public:
  enum class Kind { kSend, kReceive };
  Comm(std::shared_ptr<Plugin> plugin, const Device& device, Kind kind, void* raw);
  ~Comm();
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  Net& net() const { return plugin_->net(); }
  void* raw() const { return raw_; }
  const std::string& device() const { return device_; }

  /// Whether CUDA memory may be registered with it.
  const Status& registers_cuda() const { return registers_cuda_; }

 private:
  std::shared_ptr<Plugin> plugin_;
  std::string device_;
  Status registers_cuda_;
  Kind kind_;
  void* raw_;
};

struct MemoryRange {
  std::byte* data = nullptr;
  std::size_t size = 0;
};

/// Memory registered with one comm. Deregisters in the thread that drops it, which must be the comm's.
class MemoryHandle {
 public:
  MemoryHandle(std::shared_ptr<Comm> comm, void* raw, MemoryRange range, abi::PointerType type);
  MemoryHandle(MemoryHandle&& other) noexcept;
  MemoryHandle& operator=(MemoryHandle&& other) noexcept;
  ~MemoryHandle();

  void* raw() const { return raw_; }
  const Comm* comm() const { return comm_.get(); }
  abi::PointerType type() const { return type_; }

  /// The range lies within. Safe against overflow.
  bool covers(const std::byte* data, std::size_t size) const;

 private:
  std::shared_ptr<Comm> comm_;
  void* raw_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  abi::PointerType type_ = abi::kPointerHost;
};

/// The smallest range of whole 4 KiB pages around another.
MemoryRange page_range(std::byte* data, std::size_t size);

/// Registers exactly the range. For CUDA memory plugins ask for `page_range`.
Result<MemoryHandle> register_with(const std::shared_ptr<Comm>& comm, std::byte* data, std::size_t size,
                                   abi::PointerType type);

/// Where the receives of an UNPACK comm leave their bytes.
struct UnpackArea {
  const abi::UnpackLists* lists = nullptr;  ///< readable by the host
  const std::byte* pool = nullptr;          ///< readable by the device, or by the host where both are
};

/// The two directions. Requests go through a window (window.h).
struct SendComm {
  std::shared_ptr<Comm> comm;
};
struct RecvComm {
  std::shared_ptr<Comm> comm;
  std::optional<UnpackArea> unpack;  ///< none: bytes are in place when a receive is done
};

/// Copies `size` bytes out of the device handle, which lies in device memory if there is a device.
using CopyOut = std::function<Status(void* to, const void* from, std::size_t size)>;
Status copy_from_host(void* to, const void* from, std::size_t size);

/// Takes one connection: plugins do not promise more of a listen comm (listen_comm.h).
class Listener {
 public:
  /// `gpu`: the CUDA device that is current, whose pool will receive; -1: none.
  static Result<Listener> open(std::shared_ptr<Plugin> plugin, const Device& device,
                               CopyOut copy = copy_from_host, int gpu = -1);
  Listener(Listener&&) noexcept;
  Listener& operator=(Listener&&) noexcept;
  ~Listener();

  /// What the peer's connector needs.
  const Handle& handle() const;

  /// Nothing until the peer has connected. After a comm or an error there is nothing more to ask.
  Result<std::optional<RecvComm>> poll();

 private:
  struct State;
  explicit Listener(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// Makes one connection.
class Connector {
 public:
  /// `handle` came from a peer. What can be checked of it is; only the plugin can tell whether it is good.
  Connector(const std::shared_ptr<Plugin>& plugin, const Device& device, const Handle& handle);
  Connector(Connector&&) noexcept;
  Connector& operator=(Connector&&) noexcept;
  ~Connector();

  Result<std::optional<SendComm>> poll();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace p2p::nccl_net
