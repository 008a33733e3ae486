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

namespace p2p::engine {

/// Hands each message of the peer to the part of the connection that it is for. kProtocol for one that is for
/// none, or that its part does not take. Thread-safe as its parts are.
class Dispatch {
 public:
  struct Parts {
    std::shared_ptr<LaneSet> lanes;
    std::shared_ptr<RegionExchange> imports;
    std::shared_ptr<MessageStream> messages;
    std::shared_ptr<Sends> sends;
    std::shared_ptr<Receives> receives;
    std::shared_ptr<Notifications> notifications;
    std::function<void(const wire::Bye&)> bye;
  };

  explicit Dispatch(Parts parts) : parts_(std::move(parts)) {}

  /// Of the session.
  Status message(wire::Message& message) const;

  /// A message, whatever path it took. Under locks: what tells the application, or starts something, is
  /// `actions`.
  Status message(wire::Message& message, PostUnlockActions& actions) const;

 private:
  const Parts parts_;
};

}  // namespace p2p::engine
