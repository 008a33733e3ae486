// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// What a channel makes of its peer's address when it connects.
#include "transport/cuda_ipc/channel.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

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

}  // namespace
}  // namespace p2p::cuda_ipc
