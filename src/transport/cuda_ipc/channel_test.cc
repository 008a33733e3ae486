// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// What a channel makes of its peer's address when it connects.
#include "transport/cuda_ipc/channel.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "drivers/cuda/device.h"
#include "drivers/cuda/memory.h"

namespace p2p::cuda_ipc {
namespace {

class IpcChannelConnect : public ::testing::Test {
 protected:
  /// The same on a device that this process sees.
  SharedMemory on_a_device() {
    SharedMemory memory = probe_;
    const auto uuid = cuda::uuid_of(0);
    if (uuid) memory.device = *uuid;
    return memory;
  }

  Status connect(std::optional<SharedMemory> probe, Mappings::Open open,
                 Mappings::Covers covers = Mappings::driver_covers) {
    const auto mappings = std::make_shared<Mappings>(Mappings::Limits{}, std::move(open), std::move(covers));
    const device::Copier::Limits none{};
    IpcChannel channel({.process = this_process().value(),
                        .address = {},
                        .warmup = std::make_shared<Warmup>(none, Options{}, mappings),
                        .regions = {nullptr, ""}});
    const Status connected = channel.connect(encode(ChannelAddress{.process = peer_, .probe = probe}));
    EXPECT_EQ(channel.state() == ChannelState::kReady, connected.has_value());
    return connected;
  }

  static Result<cuda::IpcMapping> open_any(const cuda::IpcHandle&, int) { return cuda::IpcMapping(); }

  static void expect_refusal(const Status& status, const std::string& reason) {
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kUnavailable);
    EXPECT_NE(status.error().message.find(reason), std::string::npos) << status.error().message;
  }

  ProcessId peer_ = [] {
    ProcessId process = this_process().value();
    ++process.pid;
    return process;
  }();
  SharedMemory probe_ = [this] {
    SharedMemory memory;
    memory.owner = peer_;
    memory.device.fill(std::byte{0x5e});
    memory.base = std::uint64_t{1} << 32;
    memory.size = std::size_t{2} << 20;
    memory.buffer_id = 1;
    return memory;
  }();
};

TEST_F(IpcChannelConnect, TakesAPeerOfThisMachineThatHasNothingToTry) {
  EXPECT_TRUE(connect(std::nullopt, open_any));
}

TEST_F(IpcChannelConnect, RefusesAnotherMachine) {
  peer_.boot[5] ^= std::byte{1};
  expect_refusal(connect(std::nullopt, open_any), "another machine");
}

// Memory of other kinds than the one that was tried may do all the same.
TEST_F(IpcChannelConnect, GoesOnWhereMemoryOfCudaMallocCannotBeShared) {
  if (const Status status = cuda::available(); !status) GTEST_SKIP() << status.error().message;
  const auto in_use = cuda::DeviceBuffer::allocate(0, 64);
  ASSERT_TRUE(in_use);
  const auto refuse = [](const cuda::IpcHandle&, int) -> Result<cuda::IpcMapping> {
    return fail(ErrorCode::kSystem, "not in this container");
  };
  EXPECT_TRUE(connect(on_a_device(), refuse));
  EXPECT_TRUE(connect(on_a_device(), cuda::IpcMapping::open));  // a handle that nobody made
}

class Messages : public ControlLink {
 public:
  void send(std::span<const std::byte> message) override {
    sent.emplace_back(message.begin(), message.end());
  }

  std::vector<Bytes> sent;
};

/// Two channels as the sides of a session have them; neither has a device.
class IpcChannelTwins : public ::testing::Test {
 protected:
  struct Side {
    Messages messages;
    std::unique_ptr<IpcChannel> channel;
  };

  static void open(Side& side, Role role) {
    const auto mappings =
        std::make_shared<Mappings>(Mappings::Limits{}, cuda::IpcMapping::open, Mappings::driver_covers);
    auto link = TwinLink::open({.role = role, .control = &side.messages});
    ASSERT_TRUE(link);
    const auto self = this_process().value();
    auto address = encode(ChannelAddress{.process = self, .probe = {}, .twin = link->address()});
    side.channel = std::make_unique<IpcChannel>(
        IpcChannel::Own{.process = self,
                        .address = std::move(address),
                        .warmup = std::make_shared<Warmup>(device::Copier::Limits{}, Options{}, mappings),
                        .link = std::move(*link),
                        .control = &side.messages,
                        .regions = {nullptr, ""}});
  }

  void SetUp() override {
    open(acceptor_, Role::kAcceptor);
    open(connector_, Role::kConnector);
  }

  Side acceptor_;
  Side connector_;
};

TEST_F(IpcChannelTwins, TheAcceptorServesOnceItsTwinHasMetIt) {
  ASSERT_TRUE(acceptor_.channel->connect(connector_.channel->address()));
  EXPECT_EQ(acceptor_.channel->state(), ChannelState::kConnecting);
  ASSERT_TRUE(connector_.channel->connect(acceptor_.channel->address()));
  EXPECT_EQ(connector_.channel->state(), ChannelState::kReady);
  ASSERT_EQ(connector_.messages.sent.size(), 1U);
  ASSERT_TRUE(acceptor_.channel->on_control(connector_.messages.sent[0]));
  EXPECT_EQ(acceptor_.channel->state(), ChannelState::kReady);
  EXPECT_TRUE(acceptor_.messages.sent.empty());

  const auto end = acceptor_.channel->leave().end;
  ASSERT_TRUE(end);
  EXPECT_FALSE(end->over());
  connector_.channel.reset();
  EXPECT_TRUE(end->over());
}

TEST_F(IpcChannelTwins, AnAcceptorThatIsNotToldYetWaitsForItsTwinAllTheSame) {
  ASSERT_TRUE(acceptor_.channel->connect(connector_.channel->address()));
  ASSERT_TRUE(connector_.channel->connect(acceptor_.channel->address()));
  const auto end = acceptor_.channel->leave().end;
  ASSERT_TRUE(end);
  EXPECT_FALSE(end->over());
  EXPECT_FALSE(connector_.channel->leave().end);
  EXPECT_TRUE(end->over());
}

TEST_F(IpcChannelTwins, AConnectorWhoseTwinHasLeftFails) {
  const Bytes address = acceptor_.channel->address();
  acceptor_.channel.reset();
  const Status connected = connector_.channel->connect(address);
  ASSERT_FALSE(connected);
  EXPECT_EQ(connected.error().code, ErrorCode::kPeerGone);
  EXPECT_NE(connector_.channel->state(), ChannelState::kReady);
}

TEST_F(IpcChannelTwins, ThatTheyHaveMetIsSaidOnceAndOnlyWhenDue) {
  const Bytes met = encode(TwinMet{.linked = false});
  EXPECT_FALSE(acceptor_.channel->on_control(met)) << "before it is connected";
  ASSERT_TRUE(acceptor_.channel->connect(connector_.channel->address()));
  EXPECT_FALSE(acceptor_.channel->on_control(encode(TwinMet{.linked = true}))) << "nobody is there";
  EXPECT_FALSE(acceptor_.channel->on_control(met)) << "twice";
  ASSERT_FALSE(connector_.channel->on_control(met)) << "by the acceptor";
}

}  // namespace
}  // namespace p2p::cuda_ipc
