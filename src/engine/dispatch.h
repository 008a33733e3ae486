// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "engine/imports.h"
#include "engine/lanes.h"
#include "engine/notifications.h"
#include "engine/receives.h"
#include "engine/sends.h"
#include "engine/words.h"

namespace p2p::engine {

/// Hands each message of the peer to the part of the connection that it is for. kProtocol for one that is for
/// none, or that its part does not take. Thread-safe as its parts are.
class Dispatch {
 public:
  struct Parts {
    std::shared_ptr<Lanes> lanes;
    std::shared_ptr<Imports> imports;
    std::shared_ptr<Words> words;
    std::shared_ptr<Sends> sends;
    std::shared_ptr<Receives> receives;
    std::shared_ptr<Notifications> notifications;
    std::function<void(const wire::Bye&)> bye;
  };

  explicit Dispatch(Parts parts) : parts_(std::move(parts)) {}

  /// Of the session.
  Status message(wire::Message& message) const;

  /// A word, whatever path it took. Under locks: what tells the application, or starts something, is
  /// `deferred`.
  Status word(wire::Message& message, Deferred& deferred) const;

 private:
  const Parts parts_;
};

}  // namespace p2p::engine
