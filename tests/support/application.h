// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "engine/endpoint.h"
#include "support/choices.h"
#include "support/raw_peer.h"

namespace p2p::testing {

/// An application that does one thing or another with a connection to a raw peer, as the choices say.
class Application {
 public:
  static constexpr std::chrono::seconds kTimeout{20};

  Application(engine::Endpoint& endpoint, Choices& choices) : endpoint_(endpoint), choices_(choices) {}

  /// Waits until nothing reaches the memory, which is this object's: a receive may just be filled.
  ~Application() {
    const auto deadline = std::chrono::steady_clock::now() + kTimeout;
    for (const auto& region : regions_) {
      if (region->revoke(deadline) && region->wait_unused(deadline)) continue;
      std::fputs("sequence: a region is still in use after the connection's end\n", stderr);
      std::abort();
    }
  }
  Application(const Application&) = delete;
  Application& operator=(const Application&) = delete;

  void dial(std::uint16_t port) {
    connection_ = endpoint_.connect("127.0.0.1", port, kTimeout, std::nullopt);
  }

  /// RegionExchange memory of the peer, or does something with what is imported.
  void act(bool imports) {
    if (!connection_) {
      const auto all = endpoint_.connections();
      if (all.empty()) return;
      connection_ = all.back();
    }
    if (imports || remotes_.empty()) {
      RegionDescriptor descriptor{
          .address = 4096, .size = 64, .place = {}, .region = RegionId{choices_.choose(4)}};
      descriptor.incarnation = RawPeer::kIncarnation;
      if (const auto id = connection_->import_region(descriptor)) remotes_.push_back(*id);
      return;
    }
    if (!registered_)
      regions_.push_back(endpoint_.context().regions->add(memory_.data(), memory_.size(), {}).value());
    registered_ = true;
    const auto& region = regions_.back();
    const std::vector<LocalSpan> local{{region->info().id, memory_.data(), choices_.choose(9)}};
    const std::vector<RemoteSpan> remote{
        {remotes_.at(choices_.choose(256) % remotes_.size()), 4096, local[0].size}};
    switch (choices_.choose(6)) {
      case 0:
        pending_.push_back(connection_->transfers()->start(Operation::kWrite, local, remote, {}));
        break;
      case 1: pending_.push_back(connection_->send(local)); break;
      case 2: pending_.push_back(connection_->receive(local)); break;
      case 3: pending_.push_back(connection_->notify("from the application")); break;
      case 4:
        if (!pending_.empty()) pending_.at(choices_.choose(256) % pending_.size())->cancel();
        break;
      default:
        // The raw peer, whose word it may need, has its turn after this one.
        static_cast<void>(region->revoke(std::chrono::steady_clock::now()));
        registered_ = false;
    }
  }

  void end() {
    if (connection_) connection_->abort({ErrorCode::kCancelled, "the run is over"});
  }

 private:
  engine::Endpoint& endpoint_;
  Choices& choices_;
  std::shared_ptr<engine::Connection> connection_;
  std::array<std::byte, 64> memory_{};
  std::vector<std::shared_ptr<engine::Region>> regions_;  ///< also those that were revoked in part
  bool registered_ = false;                               ///< the last of them serves
  std::vector<RemoteRegionId> remotes_;
  std::vector<std::shared_ptr<engine::TransferState>> pending_;
};

}  // namespace p2p::testing
