// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "base/mutex.h"
#include "drivers/nccl_net/handle.h"
#include "drivers/nccl_net/net.h"
#include "drivers/nccl_net/plugin.h"
#include "p2p/result.h"

namespace p2p::nccl_net {

/// A plugin's listen comm and what belongs to it: good for one accept. GPUDirect-TCPX starts a thread in the
/// first call of accept, which knows the comm and its socket until all of a peer's connections have come: a
/// comm that is closed before is used all the same, and the thread takes the connections of whoever has the
/// socket's number next. Where a peer died between its connections the thread takes the next peer's for its.
/// So a comm whose accept has begun and not ended is neither closed nor used again, but kept until
/// connections of our own, which break off at once, have ended its accept: with `release` in place of a
/// destructor. One thread at a time.
class ListenComm {
 public:
  /// For the CUDA device `gpu`, which is current where there is one; -1: none.
  static Result<std::unique_ptr<ListenComm>> open(std::shared_ptr<Plugin> plugin, const Device& device,
                                                  int gpu);

  /// Closes it now, or keeps it until its accept has ended.
  static void release(std::unique_ptr<ListenComm> comm);

  /// Connects to it a few times and breaks off, so that an accept that waits for a peer fails.
  void break_accept() const;

  /// The plugin's code. `*recv_comm` is null until there is a connection.
  int accept(void** recv_comm);

  const Handle& handle() const { return handle_; }
  const std::shared_ptr<Plugin>& plugin() const { return plugin_; }
  const Device& device() const { return device_; }
  void* raw() const { return raw_; }
  bool over() const { return over_; }

  /// What accept filled in.
  const abi::DeviceHandle& device_handle() const { return device_handle_; }

  ListenComm(std::shared_ptr<Plugin> plugin, Device device, int gpu);
  ~ListenComm();
  ListenComm(const ListenComm&) = delete;
  ListenComm& operator=(const ListenComm&) = delete;

 private:
  friend class KeptListenComms;

  std::shared_ptr<Plugin> plugin_;
  Device device_;
  int gpu_;
  Handle handle_{};
  void* raw_ = nullptr;
  bool begun_ = false;  // accept was called
  bool over_ = false;   // and has ended, one way or the other
  // Plugins fill it in accept and may do so late: it stays in one place.
  abi::DeviceHandle device_handle_{};
};

}  // namespace p2p::nccl_net
