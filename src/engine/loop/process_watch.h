// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "base/process_id.h"
#include "base/unique_fd.h"
#include "engine/loop/reactor.h"

namespace p2p::engine {

/// Tells when a process of this machine ends. On the reactor's thread.
class ProcessWatch {
 public:
  explicit ProcessWatch(Reactor& reactor) : reactor_(reactor) {}

  /// Calls `ended` once, not before it returns, unless it is stopped. Nothing where `self` cannot watch
  /// `other`: it is on another machine or in another container.
  void start(const ProcessId& self, const ProcessId& other, const std::function<void()>& ended);
  void stop();

  /// It lives, as the system says.
  bool sees_it_live() const { return static_cast<bool>(process_); }

 private:
  Reactor& reactor_;
  UniqueFd process_;  // pidfd
  Reactor::TimerId at_once_{};
};

}  // namespace p2p::engine
