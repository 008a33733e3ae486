// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Small allocations that CUDA puts into one block: a peer reaches all of them at the same time.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <iostream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "drivers/cuda/device.h"
#include "drivers/cuda/memory.h"
#include "support/devices.h"
#include "support/process.h"
#include "transport/cuda_ipc/cuda_ipc.h"

namespace p2p::cuda_ipc {
namespace {

using namespace std::chrono_literals;
using p2p::testing::kLimit;
using p2p::testing::Process;
using p2p::testing::ProcessEnd;
using p2p::testing::write_block;

constexpr const char* kFlag = "--cuda-ipc-neighbours";
constexpr std::size_t kRegions = 8;
constexpr std::size_t kBytes = 20'000;

std::byte pattern(std::size_t region, std::size_t i) {
  return static_cast<std::byte>(region * 37 + i * 11 + i / 256);
}

Bytes content_of(std::size_t region) {
  Bytes bytes(kBytes);
  for (std::size_t i = 0; i < kBytes; ++i) bytes[i] = pattern(region, i);
  return bytes;
}

RegionInfo region_at(std::size_t i, std::byte* base) {
  return {.id = RegionId{static_cast<std::uint32_t>(i + 1)},
          .base = base,
          .size = kBytes,
          .place = {MemoryKind::kCuda, 0}};
}

/// The owner's process: says its regions, then lives until its input ends. Returns its exit status.
int own_regions() {
  const auto transport = make({}, test_devices());
  std::vector<cuda::DeviceBuffer> buffers;
  std::vector<std::shared_ptr<Registration>> registrations;
  for (std::size_t i = 0; i < kRegions; ++i) {
    auto buffer = cuda::DeviceBuffer::allocate(0, kBytes);
    if (!buffer || !cuda::copy_now(buffer->data(), content_of(i).data(), kBytes)) return 2;
    auto registered = transport->register_memory(region_at(i, buffer->data()));
    if (!registered) return 3;
    buffers.push_back(std::move(*buffer));
    registrations.push_back(std::move(*registered));
  }
  const auto channel = transport->open_channel({});
  if (!channel || !write_block((*channel)->address())) return 4;
  for (std::size_t i = 0; i < kRegions; ++i) {
    const auto base = reinterpret_cast<std::uint64_t>(buffers[i].data());
    if (!write_block({reinterpret_cast<const std::byte*>(&base), sizeof base})) return 5;
    if (!write_block(registrations[i]->export_key())) return 5;
  }
  std::string line;
  return std::getline(std::cin, line) ? 0 : 6;
}

/// Starts the owner.
class Owner {
 public:
  ~Owner() {
    EXPECT_TRUE(process_.write_line("end"));
    EXPECT_EQ(process_.wait(kLimit), ProcessEnd{.code = 0});
  }

  Bytes next() {
    const std::string block = process_.read_block(kLimit).value_or("");
    const auto bytes = std::as_bytes(std::span(block));
    return {bytes.begin(), bytes.end()};
  }

 private:
  Process process_ = *Process::spawn({"/proc/self/exe", kFlag});
};

Status transfer(Channel& channel, Operation operation, const Segment& segment) {
  static std::uint64_t id = 0;
  EXPECT_TRUE(channel.post(
      {.id = BatchId{++id}, .operation = operation, .segments = {&segment, 1}, .bytes = kBytes}));
  std::vector<Completion> completions;
  const auto deadline = std::chrono::steady_clock::now() + 20s;
  while (completions.empty() && std::chrono::steady_clock::now() < deadline) channel.progress(completions);
  if (completions.empty()) return tl::unexpected(Error{ErrorCode::kTimedOut, "no completion"});
  return completions[0].status;
}

TEST(IpcNeighbours, AreAllReached) {
  if (const Status status = cuda::available(); !status) GTEST_SKIP() << status.error().message;
  Owner owner;
  const auto transport = make({}, test_devices());
  auto mine = cuda::DeviceBuffer::allocate(0, kBytes, true).value();
  const auto local = transport->register_memory(region_at(100, mine.data())).value();
  const auto channel = transport->open_channel({}).value();
  ASSERT_TRUE(channel->connect(owner.next()));
  std::vector<std::unique_ptr<RemoteKey>> keys;
  std::vector<std::uint64_t> bases;
  for (std::size_t i = 0; i < kRegions; ++i) {
    const Bytes base = owner.next();
    ASSERT_EQ(base.size(), sizeof(std::uint64_t));
    std::uint64_t address = 0;
    std::memcpy(&address, base.data(), sizeof address);
    bases.push_back(address);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of the other process
    auto key = transport->import_region(region_at(i, reinterpret_cast<std::byte*>(address)), owner.next());
    ASSERT_TRUE(key) << "region " << i << ": " << key.error().message;
    keys.push_back(std::move(*key));
  }
  Bytes got(kBytes);
  // Each holds what its owner put there; then what is written here, each its neighbour's content.
  for (std::size_t shift = 0; shift < 2; ++shift) {
    for (std::size_t i = 0; i < kRegions; ++i) {
      const Segment all{mine.data(), bases[i], kBytes, local.get(), keys[i].get()};
      const Status read = transfer(*channel, Operation::kRead, all);
      ASSERT_TRUE(read) << read.error().message;
      ASSERT_TRUE(cuda::copy_now(got.data(), mine.data(), kBytes));
      EXPECT_TRUE(got == content_of(i + shift)) << i;
    }
    for (std::size_t i = 0; i < kRegions && shift == 0; ++i) {
      ASSERT_TRUE(cuda::copy_now(mine.data(), content_of(i + 1).data(), kBytes));
      const Segment all{mine.data(), bases[i], kBytes, local.get(), keys[i].get()};
      const Status written = transfer(*channel, Operation::kWrite, all);
      ASSERT_TRUE(written) << written.error().message;
    }
  }
}

}  // namespace
}  // namespace p2p::cuda_ipc

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == p2p::cuda_ipc::kFlag) return p2p::cuda_ipc::own_regions();
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
