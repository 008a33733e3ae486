// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "drivers/nccl_net/handle.h"
#include "drivers/nccl_net/net.h"
#include "p2p/result.h"

namespace p2p::nccl_net {

/// A device that the plugin reported; never one that we made up.
struct Device {
  int index = 0;
  Properties properties;
  int numa_node = -1;  ///< of its PCI place; -1: unknown

  /// "eth1" or, without a name, "device 0".
  std::string label() const;
};

/// A net plugin that was opened and initialised. Plugins allow `init` once a process and must not be
/// unloaded, so there is one Plugin a library, shared by all and kept for ever. Thread-safe but for `net`,
/// whose comms want one thread at a time.
class Plugin {
 public:
  /// kTriedFirst: where there is no CUDA, in which case that of GPUDirect-TCPX may end the process. Then it
  /// is tried in a child first, as that of a plugin of which nothing is known always is (trial.h).
  enum class Init : std::uint8_t { kHere, kTriedFirst };

  /// Opens the plugin that `name` means by NCCL's rules: a path or file name as it is, else
  /// libnccl-net-NAME.so; the first of a comma-separated list that opens; "": libnccl-net.so. "none" is
  /// refused.
  static Result<std::shared_ptr<Plugin>> open(const std::string& name, Init init = Init::kHere);

  /// What the plugin calls itself, without opening it for use (`init` is not called).
  static Result<std::string> peek_name(const std::string& name);

  const std::string& path() const { return path_; }
  std::string name() const;
  int version() const { return net_->version(); }
  Net& net() const { return *net_; }

  /// Asks the plugin again. An empty list is kUnavailable, with the reason.
  Result<std::vector<Device>> devices() const;

  /// What a listener here gives out, to see how this plugin lays out its handles. Listens at the first call,
  /// with the caller's CUDA device current.
  Result<Handle> own_handle(const Device& device);

  /// As check_handle of a peer's handle beside our own.
  Status check_peer_handle(const Device& device, const Handle& handle);

  /// kNotFound for an index that the plugin does not have.
  Result<Device> device(int index) const;

  Plugin(std::string path, std::unique_ptr<Net> net);

 private:
  std::string path_;
  std::unique_ptr<Net> net_;
  Mutex mutex_;
  std::optional<Handle> own_handle_ P2P_GUARDED_BY(mutex_);
};

/// "<what>: remote error (6)" with the code that fits. `what` names the call and the device.
Error plugin_error(int code, const std::string& what);

}  // namespace p2p::nccl_net
