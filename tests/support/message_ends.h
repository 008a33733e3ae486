// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/error.h"
#include "engine/messaging/notifications.h"
#include "engine/messaging/receives.h"
#include "engine/messaging/sends.h"
#include "support/plain_transport.h"

namespace p2p::engine {

inline std::shared_ptr<Context> message_context() {
  auto context = std::make_shared<Context>();
  TransportList transports{{std::make_shared<p2p::testing::PlainTransport>("any")}};
  context->regions = std::make_shared<RegionTable>(std::move(transports), 1, std::chrono::seconds(1));
  return context;
}

/// Two sides that send, receive and notify; a queue carries the blocks of their message streams, and a write
/// is a copy within the process.
class MessageEnds : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kRoom = 4096;  ///< bytes of eager messages
  static constexpr Notifications::Amount kNotifications{8, 400000};

  struct Side {
    std::shared_ptr<MessageStream> messages;
    std::shared_ptr<Sends> sends;
    std::shared_ptr<Receives> receives;
    std::shared_ptr<Notifications> notifications;
    std::deque<Bytes> out;
    std::vector<Error> broken;
    std::vector<std::size_t> came;  // types
  };

  void SetUp() override {
    for (Side& side : sides_) {
      side.messages = std::make_shared<MessageStream>(
          std::chrono::microseconds(0),
          MessageStream::Hooks{[&side](const wire::Message& message) {
                                 side.out.push_back(std::get<wire::MessageBlock>(message).block);
                               },
                               [&side](wire::Message& message, PostUnlockActions& actions) {
                                 side.came.push_back(message.index());
                                 return handle(side, message, actions);
                               },
                               [&side](const Error& error) { side.broken.push_back(error); }});
      side.notifications =
          std::make_shared<Notifications>(side.messages, kNotifications, context_->peer_budget);
      side.receives = std::make_shared<Receives>(context_, side.messages, kRoom);
      side.sends = std::make_shared<Sends>(
          context_, side.messages,
          Sends::Link{[](const wire::ReceiveSpan&) -> Result<RemoteRegionId> { return RemoteRegionId{1}; },
                      [this](std::span<const LocalSpan> local, std::span<const RemoteSpan> remote,
                             std::function<void(Status)> done) {
                        ++writes_;
                        for (std::size_t i = 0; i < local.size(); ++i) {
                          std::memcpy(reinterpret_cast<void*>(remote[i].address), local[i].data,
                                      local[i].size);
                        }
                        auto state = std::make_shared<TransferState>(total_of(local));
                        if (holds_writes_) {
                          held_ = std::move(done);
                          return state;
                        }
                        state->finish({});
                        done({});
                        return state;
                      }});
      side.sends->set_room(kRoom);
      side.notifications->set_peer_room(kNotifications);
      side.messages->travel_by(nullptr);
    }
    memory_.resize(std::size_t{1} << 20);
    for (std::size_t i = 0; i < memory_.size(); ++i) memory_[i] = static_cast<std::byte>(i * 7 + i / 251);
    region_ = *context_->regions->add(memory_.data(), memory_.size(), {});
  }

  void TearDown() override {
    EXPECT_TRUE(
        region_->revoke(std::chrono::steady_clock::now() + std::chrono::seconds(1)));  // it keeps the table
  }

  static std::uint64_t total_of(std::span<const LocalSpan> spans) {
    std::uint64_t bytes = 0;
    for (const LocalSpan& span : spans) bytes += span.size;
    return bytes;
  }

  static Status handle(Side& side, wire::Message& message, PostUnlockActions& actions) {
    if (auto* m = std::get_if<wire::EagerMessage>(&message)) return side.receives->on(*m, actions);
    if (auto* m = std::get_if<wire::MessageWithdrawn>(&message)) return side.receives->on(*m);
    if (auto* m = std::get_if<wire::ReceiveDone>(&message)) return side.receives->on(*m, actions);
    if (auto* m = std::get_if<wire::ReceiveWanted>(&message)) return side.receives->on(*m);
    if (auto* m = std::get_if<wire::SendsEnded>(&message)) return side.receives->on(*m, actions), Status{};
    if (auto* m = std::get_if<wire::ReceivePosted>(&message)) return side.sends->on(*m, actions);
    if (auto* m = std::get_if<wire::ReceiveWithdrawn>(&message)) return side.sends->on(*m, actions);
    if (auto* m = std::get_if<wire::MessageAnswered>(&message)) return side.sends->on(*m, actions);
    if (auto* m = std::get_if<wire::MessageDeclined>(&message)) return side.sends->on(*m, actions);
    if (auto* m = std::get_if<wire::Notify>(&message)) return side.notifications->on(*m, actions);
    if (auto* m = std::get_if<wire::NotifyTaken>(&message)) return side.notifications->on(*m, actions);
    if (auto* m = std::get_if<wire::NotifyDone>(&message))
      return side.notifications->on(*m, actions), Status{};
    return fail(ErrorCode::kProtocol, "not a message of the stream");
  }

  void run() {
    for (bool any = true; any;) {
      any = false;
      for (int from = 0; from < 2; ++from) {
        std::deque<Bytes> blocks;
        blocks.swap(sides_[from].out);
        any = any || !blocks.empty();
        for (const Bytes& block : blocks) {
          PostUnlockActions actions;
          sides_[1 - from].messages->take(block, actions);
          actions.run();
          sides_[1 - from].messages->flush();
        }
      }
    }
    for (const Side& side : sides_) {
      ASSERT_TRUE(side.broken.empty() || hostile_) << side.broken.front().message;
    }
  }

  LocalSpan span(std::size_t offset, std::size_t size) {
    return {region_->info().id, memory_.data() + offset, size};
  }

  std::shared_ptr<TransferState> send(std::size_t offset, std::size_t size) {
    const LocalSpan one = span(offset, size);
    return sides_[0].sends->post({&one, 1});
  }

  std::shared_ptr<TransferState> receive(std::size_t offset, std::size_t size) {
    const LocalSpan one = span(offset, size);
    return sides_[1].receives->post({&one, 1});
  }

  bool same(std::size_t a, std::size_t b, std::size_t size) {
    return std::memcmp(memory_.data() + a, memory_.data() + b, size) == 0;
  }

  static ErrorCode code(const std::shared_ptr<TransferState>& state) {
    EXPECT_TRUE(state->done());
    return state->done() && !state->status() ? state->status().error().code : ErrorCode{255};
  }
  static bool good(const std::shared_ptr<TransferState>& state) { return state->done() && state->status(); }

  // What a hostile peer of side 1 says.
  void inject(const wire::Message& message) {
    hostile_ = true;
    sides_[0].messages->say(message);
    sides_[0].messages->flush();
    run();
  }

  const std::shared_ptr<Context> context_ = message_context();
  Side sides_[2];
  std::vector<std::byte> memory_;
  std::shared_ptr<Region> region_;
  int writes_ = 0;
  bool holds_writes_ = false;
  std::function<void(Status)> held_;
  bool hostile_ = false;
};

}  // namespace p2p::engine
