// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Device memory through a net plugin: softnet with its pool in pinned memory, in the mode that SOFTNET_*
// says.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "drivers/cuda/device.h"
#include "drivers/cuda/memory.h"
#include "p2p/endpoint.h"

namespace p2p {
namespace {

constexpr std::chrono::seconds kPatience{30};
constexpr std::size_t kSize = std::size_t{64} << 20;

Options options() {
  Options set = *Options::from_environment();
  set.listen_address = "127.0.0.1";
  set.transports = {"tcpx"};
  set.nccl_net.plugin = SOFTNET_PATH;
  return set;
}

std::vector<std::byte> noise(std::size_t size, unsigned seed) {
  std::vector<std::byte> bytes(size);
  std::mt19937_64 random(seed);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

/// One endpoint with registered memory of one device.
struct Side {
  Endpoint endpoint;
  cuda::DeviceBuffer memory;
  MemoryRegion region;

  static Side open(int device) {
    auto endpoint = Endpoint::create(options());
    EXPECT_TRUE(endpoint) << endpoint.error().message;
    auto memory = cuda::DeviceBuffer::allocate(device, kSize, true);
    EXPECT_TRUE(memory) << memory.error().message;
    auto region = endpoint->register_memory(memory->data(), kSize);
    EXPECT_TRUE(region) << region.error().message;
    return {std::move(*endpoint), std::move(*memory), std::move(*region)};
  }
  void set(const std::vector<std::byte>& bytes) {
    ASSERT_TRUE(cuda::copy_now(memory.data(), bytes.data(), bytes.size()));
  }
  std::vector<std::byte> get() const {
    std::vector<std::byte> bytes(kSize);
    EXPECT_TRUE(cuda::copy_now(bytes.data(), memory.data(), kSize));
    return bytes;
  }
};

class GpuNcclNet : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    ::setenv("SOFTNET_CUDA", "1", 1);
    ::setenv("SOFTNET_INTERFACES", "lo", 1);
  }
  void SetUp() override {
    if (const auto available = cuda::available(); !available) GTEST_SKIP() << available.error().message;
    left_.emplace(Side::open(0));
    right_.emplace(Side::open(cuda::device_count() > 1 ? 1 : 0));
    auto connection = left_->endpoint.connect("127.0.0.1", right_->endpoint.port(), kPatience);
    ASSERT_TRUE(connection) << connection.error().message;
    connection_ = *connection;
    const auto remote = connection_.import_region(right_->region.descriptor());
    ASSERT_TRUE(remote) << remote.error().message;
    remote_ = *remote;
  }
  RemoteSpan remote(std::size_t offset, std::size_t size) const {
    return {remote_, reinterpret_cast<std::uint64_t>(right_->memory.data()) + offset, size};
  }
  static void expect_done(const Transfer& transfer) {
    const auto status = transfer.wait(kPatience);
    EXPECT_TRUE(status) << status.error().message;
  }

  std::optional<Side> left_, right_;
  Connection connection_;
  RemoteRegionId remote_{};
};

TEST_F(GpuNcclNet, IsTheRouteBetweenDevices) {
  bool found = false;
  for (const Route& route : connection_.routes()) {
    if (route.local != MemoryKind::kCuda || route.remote != MemoryKind::kCuda) continue;
    found = true;
    EXPECT_EQ(route.transport, "nccl_net") << route.reason;
    EXPECT_NE(route.detail.find("on CUDA device"), std::string::npos) << route.detail;
  }
  EXPECT_TRUE(found);
}

TEST_F(GpuNcclNet, AnySizeAndAlignment) {
  const auto bytes = noise(kSize, 1);
  left_->set(bytes);
  for (const std::size_t size : {std::size_t{1}, std::size_t{15}, std::size_t{4096}, std::size_t{65537},
                                 std::size_t{1000003}, kSize - 64}) {
    for (const std::size_t offset : {std::size_t{0}, std::size_t{3}, std::size_t{16}}) {
      right_->set(std::vector<std::byte>(kSize));
      expect_done(connection_.write(left_->region.span(offset, size), remote(2 * offset, size)));
      const auto got = right_->get();
      ASSERT_TRUE(std::equal(got.begin() + static_cast<std::ptrdiff_t>(2 * offset),
                             got.begin() + static_cast<std::ptrdiff_t>(2 * offset + size),
                             bytes.begin() + static_cast<std::ptrdiff_t>(offset)))
          << size << " bytes at " << offset;
      EXPECT_EQ(got[2 * offset + size], std::byte{}) << "a byte behind the end";
    }
  }
}

TEST_F(GpuNcclNet, ScatteredBlocksBothWays) {
  constexpr std::size_t kBlock = 4096;
  constexpr std::size_t kBlocks = 5000;
  const auto bytes = noise(kSize, 2);
  left_->set(bytes);
  std::vector<std::size_t> from(kSize / kBlock), to(kSize / kBlock);
  std::iota(from.begin(), from.end(), std::size_t{0});
  std::iota(to.begin(), to.end(), std::size_t{0});
  std::mt19937 random(5);
  std::ranges::shuffle(from, random);
  std::ranges::shuffle(to, random);
  std::vector<LocalSpan> local;
  std::vector<RemoteSpan> there;
  for (std::size_t index = 0; index < kBlocks; ++index) {
    const std::size_t size = kBlock - 8 - index % 7;
    local.push_back(left_->region.span(from[index] * kBlock + index % 5, size));
    there.push_back(remote(to[index] * kBlock + index % 3, size));
  }
  expect_done(connection_.write(local, there));
  const auto written = right_->get();
  for (std::size_t index = 0; index < kBlocks; ++index) {
    ASSERT_EQ(std::memcmp(written.data() + to[index] * kBlock + index % 3,
                          bytes.data() + from[index] * kBlock + index % 5, local[index].size),
              0)
        << "block " << index;
  }
  left_->set(std::vector<std::byte>(kSize));
  expect_done(connection_.read(local, there));
  const auto read = left_->get();
  for (std::size_t index = 0; index < kBlocks; ++index) {
    ASSERT_EQ(std::memcmp(read.data() + from[index] * kBlock + index % 5,
                          bytes.data() + from[index] * kBlock + index % 5, local[index].size),
              0)
        << "block " << index;
  }
}

TEST_F(GpuNcclNet, ManyTransfersAtOnce) {
  const auto bytes = noise(kSize, 4);
  left_->set(bytes);
  std::vector<Transfer> transfers;
  constexpr std::size_t kParts = 64;
  constexpr std::size_t kPart = kSize / kParts;
  for (std::size_t part = 0; part < kParts; ++part) {
    transfers.push_back(connection_.write(left_->region.span(part * kPart, kPart),
                                          remote((kParts - 1 - part) * kPart, kPart)));
  }
  for (const Transfer& transfer : transfers) expect_done(transfer);
  const auto got = right_->get();
  for (std::size_t part = 0; part < kParts; ++part) {
    ASSERT_EQ(std::memcmp(got.data() + (kParts - 1 - part) * kPart, bytes.data() + part * kPart, kPart), 0);
  }
}

TEST_F(GpuNcclNet, HostMemoryIsRefusedWithAReason) {
  std::vector<std::byte> host(4096);
  const auto region = left_->endpoint.register_memory(host.data(), host.size());
  ASSERT_FALSE(region);
  EXPECT_NE(region.error().message.find("CUDA memory only"), std::string::npos) << region.error().message;
}

/// One endpoint with memory on two devices; of the second one registered when told.
struct WideSide {
  Endpoint endpoint;
  std::array<cuda::DeviceBuffer, 2> memory;
  std::array<MemoryRegion, 2> regions;

  void add(int device) {
    auto buffer = cuda::DeviceBuffer::allocate(device, kSize, true);
    ASSERT_TRUE(buffer) << buffer.error().message;
    memory[device] = std::move(*buffer);
    auto region = endpoint.register_memory(memory[device].data(), kSize);
    ASSERT_TRUE(region) << region.error().message;
    regions[device] = std::move(*region);
  }
};

class GpuNcclNetTwoDevices : public ::testing::Test {
 protected:
  static constexpr std::size_t kBlock = 8192;

  static void SetUpTestSuite() {
    ::setenv("SOFTNET_CUDA", "1", 1);
    ::setenv("SOFTNET_INTERFACES", "lo", 1);
  }
  void SetUp() override {
    if (const auto available = cuda::available(); !available) GTEST_SKIP() << available.error().message;
    if (cuda::device_count() < 2 || !cuda::reaches(0, 1))
      GTEST_SKIP() << "needs two devices that reach each other";
    for (auto* side : {&left_, &right_}) {
      auto endpoint = Endpoint::create(options());
      ASSERT_TRUE(endpoint) << endpoint.error().message;
      side->emplace(WideSide{std::move(*endpoint), {}, {}});
      (*side)->add(0);
    }
  }
  void connect() {
    auto connection = left_->endpoint.connect("127.0.0.1", right_->endpoint.port(), kPatience);
    ASSERT_TRUE(connection) << connection.error().message;
    connection_ = *connection;
  }

  /// From every device to every device and back, scattered and in one piece.
  void move_all() {
    for (int here = 0; here < 2; ++here) {
      for (int there = 0; there < 2; ++there) move(here, there);
    }
  }
  void move(int here, int there) {
    SCOPED_TRACE("from device " + std::to_string(here) + " to device " + std::to_string(there));
    const auto remote = connection_.import_region(right_->regions[there].descriptor());
    ASSERT_TRUE(remote) << remote.error().message;
    const auto bytes = noise(kSize, static_cast<unsigned>(10 * here + there));
    ASSERT_TRUE(cuda::copy_now(left_->memory[here].data(), bytes.data(), kSize));
    const auto base = reinterpret_cast<std::uint64_t>(right_->memory[there].data());
    std::vector<LocalSpan> local{left_->regions[here].span(0, kSize / 2)};
    std::vector<RemoteSpan> target{{*remote, base, kSize / 2}};
    for (std::size_t at = kSize / 2; at < kSize; at += kBlock) {
      local.push_back(left_->regions[here].span(at, kBlock));
      target.push_back({*remote, base + (kSize - kBlock) - (at - kSize / 2), kBlock});
    }
    for (const bool write : {true, false}) {
      const auto transfer = write ? connection_.write(local, target) : connection_.read(local, target);
      const auto status = transfer.wait(kPatience);
      ASSERT_TRUE(status) << status.error().message;
      if (write) {
        ASSERT_TRUE(cuda::copy_now(left_->memory[here].data(), std::vector<std::byte>(kSize).data(), kSize));
      }
    }
    std::vector<std::byte> back(kSize);
    ASSERT_TRUE(cuda::copy_now(back.data(), left_->memory[here].data(), kSize));
    EXPECT_EQ(back, bytes);
    std::vector<std::byte> first(kSize / 2);
    ASSERT_TRUE(cuda::copy_now(first.data(), right_->memory[there].data(), first.size()));
    EXPECT_TRUE(std::ranges::equal(first, std::span(bytes).first(first.size())));
  }

  std::optional<WideSide> left_, right_;
  Connection connection_;
};

TEST_F(GpuNcclNetTwoDevices, EachHasChannelsIfItsMemoryIsThereBeforeThePeer) {
  left_->add(1);
  right_->add(1);
  connect();
  move_all();
}

TEST_F(GpuNcclNetTwoDevices, TheOthersChannelsServeTheOneThatComesLater) {
  connect();
  left_->add(1);
  right_->add(1);
  move_all();
}

// Freed behind the engine's back, on either side, and perhaps given to somebody else.
TEST_F(GpuNcclNet, MemoryThatWasFreedIsRefusedAndTheRestGoesOn) {
  const auto bytes = noise(kSize, 3);
  left_->set(bytes);
  right_->set(bytes);
  expect_done(connection_.write(left_->region.span(0, kSize), remote(0, kSize)));
  auto second = cuda::DeviceBuffer::allocate(0, kSize, true).value();
  const auto there = remote(0, 4096);
  const auto expect_refused = [](const Transfer& transfer) {
    const Status status = transfer.wait(kPatience);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kNotFound) << status.error().message;
    EXPECT_NE(status.error().message.find("was freed"), std::string::npos) << status.error().message;
  };
  {
    auto region = left_->endpoint.register_memory(second.data(), kSize).value();
    expect_done(connection_.write(region.span(0, 4096), there));
    second = cuda::DeviceBuffer();
    expect_refused(connection_.write(region.span(0, 4096), there));
    expect_refused(connection_.read(region.span(0, 4096), there));
    second = cuda::DeviceBuffer::allocate(0, kSize, true).value();
    expect_refused(connection_.write(region.span(0, kSize), remote(0, kSize)));
    expect_refused(connection_.read(region.span(0, kSize), remote(0, kSize)));
  }
  const int device = right_->memory.device();
  right_->memory = cuda::DeviceBuffer();
  expect_refused(connection_.write(left_->region.span(0, 4096), there));
  expect_refused(connection_.read(left_->region.span(0, 4096), there));
  right_->memory = cuda::DeviceBuffer::allocate(device, kSize, true).value();
  right_->region = right_->endpoint.register_memory(right_->memory.data(), kSize).value();
  remote_ = connection_.import_region(right_->region.descriptor()).value();
  expect_done(connection_.write(left_->region.span(0, kSize), remote(0, kSize)));
  EXPECT_EQ(right_->get(), left_->get());
}

}  // namespace
}  // namespace p2p
