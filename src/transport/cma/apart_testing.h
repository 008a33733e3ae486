// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "drivers/socket/local_socket.h"
#include "transport/cma/owner_copies_testing.h"
#include "transport/copy_request.h"

namespace p2p::cma {

inline constexpr std::uint64_t kBytes = 100'000;

/// A channel, and a peer of another PID namespace, as it says, that speaks to it by hand. Neither reaches the
/// other's memory.
class Apart : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string folder = ::testing::TempDir() + "slots.XXXXXX";
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    place_ = socket::Place::at(folder_).value();
  }
  void TearDown() override {
    channel_.reset();
    EXPECT_TRUE(std::filesystem::is_empty(folder_));
    std::filesystem::remove_all(folder_);
  }

  /// The peer, in another PID namespace as it says, proves itself with `secret` and shows memory that is none
  /// of its own: so the channel takes its memory to be out of reach.
  void connect(std::byte secret = std::byte{7}) {
    ChannelSetup setup{.role = Role::kAcceptor};
    setup.secret.fill(std::byte{7});
    auto staging = std::make_shared<device::Staging>(plain_pool(), kStagingShare, true);
    auto opened = CmaChannel::open(setup, std::move(staging), PeerAccess(regions_, "the peer"), place_);
    ASSERT_TRUE(opened) << opened.error().message;
    channel_ = *std::move(opened);
    Address mine{.host = *Host::here(place_), .listener = Address::kTakesRequests};
    ++mine.host.pid_namespace;
    ASSERT_TRUE(channel_->connect(mine.serialize()));
    const Token name = Address::parse(channel_->address())->listener;
    socket_ = socket::connect_locally(name_of(name), {}, place_).value();
    MemoryProof proof{.token_address = reinterpret_cast<std::uint64_t>(folder_.data())};
    setup.role = Role::kConnector;
    setup.secret.fill(secret);
    ASSERT_TRUE(socket::send_packet(socket_, proof.serialize(setup, name, 0), {}, {}));
    turns();
    if (channel_->state() != ChannelState::kReady) return;
    UniqueFd file;
    Bytes answer(MemoryProof::kBytes + 1);
    ASSERT_GT(receive_with_descriptor(socket_, answer, file), 0);
    ring_ = RingMemory::open(file, 2, 2 * SharedSlots::kBytes).value();
    writer_ = RingWriter(ring_.direction(1, 1));
    reader_ = RingReader(ring_.direction(0, 1));
    slots_ = SharedSlots(std::move(file), ring_bytes(2), false);
  }

  void turns() {
    for (int round = 0; round != 100; ++round) channel_->progress(done_);
  }

  template <class Message>
  Message hear() {
    Bytes message;
    const auto read = reader_.read(message);
    EXPECT_TRUE(read && *read);
    auto decoded = decode_copy_message(message);
    EXPECT_TRUE(decoded && std::holds_alternative<Message>(*decoded));
    return decoded ? std::get<Message>(*std::move(decoded)) : Message{};
  }

  void say(const Bytes& message) {
    ASSERT_TRUE(writer_.write(message).value());
    turns();
  }

  /// The peer's request for bytes of `memory_`, from its slots' byte `at` on.
  CopyRequest request(Operation operation, std::uint64_t at) const {
    const auto base = reinterpret_cast<std::uint64_t>(memory_.data());
    return {.batch = 1,
            .operation = operation,
            .regions = {{info_.id, info_.key}},
            .pieces = {{base + 5, at, 100, 0}, {base + 500, at + 100, 28, 0}}};
  }

  /// A batch of this side, as the owner is asked for it.
  CopyRequest post(Operation operation) {
    EXPECT_TRUE(channel_->post({BatchId{4}, operation, segments_, 0, kBytes}));
    turns();
    EXPECT_TRUE(done_.empty());
    return hear<CopyRequest>();
  }

  std::string folder_;
  socket::Place place_;
  Bytes memory_ = pattern(kBytes, 2);
  const Bytes before_ = memory_;
  const RegionInfo info_ = info_of(1, memory_.data(), memory_.size());
  const std::shared_ptr<RegistrationTable> regions_ = [this] {
    auto table = std::make_shared<RegistrationTable>();
    table->add(std::make_shared<Registration>(info_));
    return table;
  }();
  const Registration local_{info_};
  const RemoteKey key_{info_of(9, reinterpret_cast<std::byte*>(0x10000), kBytes)};
  const std::vector<Segment> segments_{{memory_.data(), 0x10000, kBytes, &local_, &key_}};
  std::unique_ptr<Channel> channel_;
  UniqueFd socket_;
  RingMemory ring_;
  RingWriter writer_;
  RingReader reader_;
  SharedSlots slots_;
  std::vector<Completion> done_;
};

}  // namespace p2p::cma
