// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/service.h"
#include "transport/tcp/connect/acceptor.h"
#include "transport/tcp/connect/connector.h"
#include "transport/tcp/tcp.h"

/// For tests: two transports of one process with a channel each.
namespace p2p::tcp {

inline constexpr std::size_t kMiB = std::size_t{1} << 20;

inline std::byte pattern(std::size_t seed, std::size_t i) {
  return static_cast<std::byte>((i * 2654435761U >> 7) + seed * 101 + i);
}

// Registered memory of one side, and what the other side needs to reach it.
struct Memory {
  std::vector<std::byte> bytes;
  std::shared_ptr<Registration> registration;
  std::unique_ptr<RemoteKey> key;

  void fill(std::size_t seed) {
    for (std::size_t i = 0; i != bytes.size(); ++i) bytes[i] = pattern(seed, i);
  }
  std::uint64_t address() const { return reinterpret_cast<std::uint64_t>(bytes.data()); }
};

// One transport with one channel.
struct Side {
  std::unique_ptr<Transport> transport;
  std::unique_ptr<Channel> channel;
  std::vector<Completion> completions;
  std::uint32_t regions = 0;

  explicit Side(const Options& options)
      : transport(make(options, std::make_shared<device::Service>(options))) {}

  // `peer` is the transport that will name it.
  Memory memory(std::size_t size, Transport& peer) {
    Memory made{.bytes = std::vector<std::byte>(size)};
    RegionInfo info{.id = static_cast<RegionId>(++regions), .base = made.bytes.data(), .size = size};
    info.key.fill(static_cast<std::byte>(regions));
    made.registration = *transport->register_memory(info);
    made.key = *peer.import_region({.id = info.id, .key = info.key}, {});
    return made;
  }

  bool progress() { return channel->progress(completions); }

  const Completion* find(std::uint64_t id) const {
    const auto found = std::find_if(
        completions.begin(), completions.end(),
        [id](const Completion& completion) { return completion.id == static_cast<BatchId>(id); });
    return found == completions.end() ? nullptr : &*found;
  }

  void sleep() const {
    if (channel->busy()) return;
    pollfd ready{.fd = channel->ready_fd(), .events = POLLIN, .revents = 0};
    ::poll(&ready, 1, 20);
  }
};

inline Segment whole(const Memory& local, const Memory& remote) {
  return {const_cast<std::byte*>(local.bytes.data()), remote.address(), local.bytes.size(),
          local.registration.get(), remote.key.get()};
}

inline Batch batch_of(std::uint64_t id, const std::vector<Segment>& segments,
                      Operation operation = Operation::kWrite) {
  std::uint64_t bytes = 0;
  for (const Segment& segment : segments) bytes += segment.size;
  return {.id = static_cast<BatchId>(id), .operation = operation, .segments = segments, .bytes = bytes};
}

/// For parameters of tests: in clear, or within TLS.
inline std::string name_of_encryption(const ::testing::TestParamInfo<bool>& info) {
  return info.param ? "Encrypted" : "InClear";
}

class ChannelPair {
 protected:
  explicit ChannelPair(const Options& options = {}) : left_(options), right_(options) {}

  ChannelSetup setup(Role role) const {
    ChannelSetup made{.role = role,
                      .rail = {"lo", "127.0.0.1"},
                      .path = {.local_address = "127.0.0.1", .remote_address = "127.0.0.1"}};
    made.secret.fill(std::byte{42});
    made.encrypt = encrypt_;
    made.control = role == Role::kConnector ? left_control_ : right_control_;
    return made;
  }

  bool open() {
    left_.channel = *left_.transport->open_channel(setup(Role::kConnector));
    right_.channel = *right_.transport->open_channel(setup(Role::kAcceptor));
    return right_.channel->connect(left_.channel->address()) &&
           left_.channel->connect(right_.channel->address()) && drive([&] {
             return left_.channel->state() == ChannelState::kReady &&
                    right_.channel->state() == ChannelState::kReady;
           });
  }

  // Both sides in turns on this thread, until `done` or too much time has passed.
  template <class Done>
  bool drive(Done done) {
    const auto deadline = Clock::now() + std::chrono::seconds(60);
    while (!done()) {
      if (Clock::now() > deadline) return false;
      left_.progress();
      if (right_.channel) right_.progress();
    }
    return true;
  }

  Status outcome(Side& side, std::uint64_t id) {
    if (!drive([&] { return side.find(id) != nullptr; })) {
      return tl::unexpected(Error{ErrorCode::kTimedOut, "no completion"});
    }
    return side.find(id)->status;
  }

  bool encrypt_ = false;
  ControlLink* left_control_ = nullptr;
  ControlLink* right_control_ = nullptr;
  Side left_;
  Side right_;
};

}  // namespace p2p::tcp
