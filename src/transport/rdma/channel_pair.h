// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "transport/rdma/channel.h"
#include "transport/rdma/transport.h"

namespace p2p::rdma::testing {

using Clock = std::chrono::steady_clock;

/// Bound on whatever must come, also on a slow and loaded machine.
inline constexpr std::chrono::seconds kPatience{60};

/// Keeps messages until the other side is served, as a session would.
struct Messages : ControlLink {
  std::deque<Bytes> messages;
  void send(std::span<const std::byte> message) override {
    messages.emplace_back(message.begin(), message.end());
  }
};

/// One side: a transport, a channel and 1 MiB of registered memory.
struct Side {
  Side(const Options& options, const verbs::Library* library)
      : transport(options, library), memory(std::size_t{1} << 20) {}

  Status open(Role role, std::size_t rail = 0) {
    ChannelSetup setup{.role = role, .control = &control};
    setup.rail = transport.rails({}).at(rail);
    setup.secret.fill(std::byte{0x42});
    auto opened = transport.open_channel(setup);
    if (!opened) return tl::unexpected(opened.error());
    channel = std::move(*opened);
    const RegionInfo info{.id = RegionId{1},
                          .base = memory.data(),
                          .size = memory.size(),
                          .place = {},
                          .options = std::make_shared<const RegionOptions>(region_options)};
    auto registered = transport.register_memory(info);
    if (!registered) return tl::unexpected(registered.error());
    registration = std::move(*registered);
    return {};
  }

  std::unique_ptr<RemoteKey> import(const Side& owner) {
    return transport.import_region(owner.registration->info(), owner.registration->export_key()).value();
  }

  std::uint64_t address() const { return reinterpret_cast<std::uint64_t>(memory.data()); }

  Messages control;
  RegionOptions region_options;  ///< of the memory, once it is registered
  RdmaTransport transport;
  std::vector<std::byte> memory;
  std::shared_ptr<Registration> registration;
  std::unique_ptr<RemoteKey> key;  ///< of the other side's memory
  std::unique_ptr<Channel> channel;
  std::map<std::uint64_t, Status> ended;
};

/// Two sides of one process, driven by one thread.
struct ChannelPair {
  ChannelPair(const Options& options, const verbs::Library* library)
      : left(options, library), right(options, library) {
    for (std::size_t i = 0; i < left.memory.size(); ++i) left.memory[i] = static_cast<std::byte>(i * 31 >> 3);
  }

  void connect() {
    ASSERT_TRUE(left.open(Role::kConnector));
    ASSERT_TRUE(right.open(Role::kAcceptor));
    ASSERT_TRUE(right.channel->connect(left.channel->address()));
    ASSERT_TRUE(left.channel->connect(right.channel->address()));
    left.key = left.import(right);
    right.key = right.import(left);
    ASSERT_TRUE(serve_until([&] { return ready(left) && ready(right); }));
  }

  static bool ready(const Side& side) { return side.channel->state() == ChannelState::kReady; }
  static bool failed(const Side& side) { return side.channel->state() == ChannelState::kFailed; }

  void serve(Side& side, Side& other) {
    if (!side.channel) return;
    for (; !other.control.messages.empty(); other.control.messages.pop_front()) {
      EXPECT_TRUE(side.channel->on_control(other.control.messages.front()));
    }
    std::vector<Completion> completions;
    side.channel->progress(completions);
    for (Completion& one : completions) {
      const auto id = static_cast<std::uint64_t>(one.id);
      EXPECT_TRUE(side.ended.emplace(id, std::move(one.status)).second) << "twice: " << id;
    }
  }

  bool serve_until(const std::function<bool()>& condition) {
    const auto deadline = Clock::now() + kPatience;
    while (!condition()) {
      if (Clock::now() > deadline) return false;
      serve(left, right);
      serve(right, left);
    }
    return true;
  }

  /// Of `side` to its peer's memory, both at `offset` unless told otherwise.
  Segment segment(Side& side, std::size_t local, std::size_t remote, std::size_t size) {
    Side& other = &side == &left ? right : left;
    return {side.memory.data() + local, other.address() + remote, size, side.registration.get(),
            side.key.get()};
  }

  /// Posts a batch of these segments, which stay; false: full.
  bool post(Side& side, std::uint64_t id, std::vector<Segment> segments,
            Operation operation = Operation::kWrite) {
    kept.push_back(std::move(segments));
    Batch batch{.id = BatchId{id}, .operation = operation, .segments = kept.back()};
    for (const Segment& each : kept.back()) batch.bytes += each.size;
    if (side.channel->post(batch)) return true;
    kept.pop_back();
    return false;
  }

  std::deque<std::vector<Segment>> kept;
  Side left;  ///< connects
  Side right;
};

}  // namespace p2p::rdma::testing
