// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "engine/channels/lane_set.h"
#include "engine/messaging/message_stream.h"
#include "engine/messaging/notifications.h"
#include "engine/messaging/receives.h"
#include "engine/messaging/sends.h"
#include "engine/transfer/region_exchange.h"
#include "engine/transfer/verifier.h"

namespace p2p::engine {

/// Hands each message of the peer to the part of the connection that handles it. kProtocol for a message that
/// no part handles, or that its part refuses: the connection ends then. Thread-safe, as the parts are.
class Dispatch {
 public:
  struct Parts {
    std::shared_ptr<LaneSet> lanes;
    std::shared_ptr<RegionExchange> imports;
    std::shared_ptr<MessageStream> messages;
    std::shared_ptr<Sends> sends;
    std::shared_ptr<Receives> receives;
    std::shared_ptr<Notifications> notifications;
    std::shared_ptr<Verifier> verifier;
    std::function<void(const wire::Bye&)> bye;
  };

  explicit Dispatch(Parts parts) : parts_(std::move(parts)) {}

  /// A message of the control connection. On the session's thread.
  Status session_message(wire::Message& message) const;

  /// A message of the message stream, whichever path it took. Called under the stream's lock: what calls the
  /// application or starts work goes to `actions`.
  Status stream_message(wire::Message& message, PostUnlockActions& actions) const;

 private:
  const Parts parts_;
};

}  // namespace p2p::engine
