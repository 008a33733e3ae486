// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "base/bytes.h"
#include "transport/nccl_net/protocol.h"
#include "transport/transport.h"

namespace p2p::nccl_net {

/// Messages to the peer's channel. They go to the control link together, at the end of each call of the
/// channel. Part of its channel.
class MessageSender {
 public:
  explicit MessageSender(ControlLink* link) : link_(link) {}

  void send(const Message& message) {
    if (unsent_.empty()) unsent_.push_back(kPackedMessages);
    pack(unsent_, message);
    if (unsent_.size() >= kPackedBytes) flush();
  }

  void flush() {
    if (!unsent_.empty()) link_->send(unsent_);
    unsent_.clear();
  }

  bool pending() const { return !unsent_.empty(); }

 private:
  // Of a control message; no single message is larger than its rest up to 64 KiB.
  static constexpr std::size_t kPackedBytes = std::size_t{16} << 10;

  ControlLink* link_;
  Bytes unsent_;
};

}  // namespace p2p::nccl_net
