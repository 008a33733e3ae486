// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cuda_ipc/cuda_ipc.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <iostream>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "drivers/cuda/device.h"
#include "drivers/cuda/memory.h"
#include "support/devices.h"
#include "support/memory.h"
#include "support/process.h"
#include "transport/cuda_ipc/memory/key.h"

namespace p2p::cuda_ipc {
namespace {

using namespace std::chrono_literals;
using p2p::testing::kLimit;
using p2p::testing::Process;
using p2p::testing::write_block;

Bytes random_bytes(std::size_t size, unsigned seed) {
  Bytes bytes(size);
  testing::fill(bytes, seed);
  return bytes;
}

Bytes bytes_of(const std::string& block) {
  const auto bytes = std::as_bytes(std::span(block));
  return {bytes.begin(), bytes.end()};
}

TEST(CudaIpcTransport, SaysWhyItCannotBeUsed) {
  const auto transport = make({}, test_devices());
  EXPECT_EQ(transport->probe().has_value(), cuda::available().has_value());
  if (cuda::available()) return;
  EXPECT_EQ(transport->probe().error().code, ErrorCode::kUnavailable);
  EXPECT_FALSE(transport->open_channel({}));
}

TEST(CudaIpcTransport, CarriesToDevicesOnly) {
  const auto transport = make({}, test_devices());
  const MemoryPlace host;
  const MemoryPlace device{MemoryKind::kCuda, 0};
  EXPECT_TRUE(transport->carries(host, device));
  EXPECT_TRUE(transport->carries(device, device));
  EXPECT_FALSE(transport->carries(device, host));
  EXPECT_FALSE(transport->carries(host, host));
}

TEST(CudaIpcTransport, PassesOnWhyTheOwnerCannotShare) {
  const auto transport = make({}, test_devices());
  std::vector<std::byte> memory(4096);
  const RegionInfo region{.id = RegionId{1}, .base = memory.data(), .size = memory.size()};
  const auto registered = transport->register_memory(region);
  ASSERT_TRUE(registered);
  const auto key = transport->import_region(region, (*registered)->export_key());
  ASSERT_FALSE(key);
  EXPECT_NE(key.error().message.find("host memory"), std::string::npos) << key.error().message;
  EXPECT_FALSE(transport->import_region(region, {}));
}

/// The other process: owns a buffer and says its content when it is asked.
class PeerProcess {
 public:
  static constexpr std::size_t kBytes = std::size_t{48} << 20;
  static constexpr const char* kFlag = "--cuda-ipc-peer";

  explicit PeerProcess(int device)
      : process_(*Process::spawn({"/proc/self/exe", kFlag, std::to_string(device)})) {
    address = receive();
    key = receive();
    region = {.id = RegionId{1}, .base = nullptr, .size = kBytes, .place = {MemoryKind::kCuda, device}};
    const Bytes base = receive();
    if (base.size() == sizeof region.base) std::memcpy(&region.base, base.data(), sizeof region.base);
  }

  void kill() { process_.signal(SIGKILL); }

  /// Whether the process is no more.
  bool dead() { return process_.wait(0ms).over(); }

  /// What its buffer holds.
  Bytes content() {
    EXPECT_TRUE(process_.write_line("content"));
    return receive();
  }

  /// The child's side; returns the exit status.
  static int serve(int device);

  Bytes address;
  Bytes key;
  RegionInfo region;

 private:
  Bytes receive() { return bytes_of(process_.read_block(kLimit).value_or("")); }

  Process process_;
};

int PeerProcess::serve(int device) {
  auto buffer = cuda::DeviceBuffer::allocate(device, kBytes);
  if (!buffer) return 4;
  const Bytes content = random_bytes(kBytes, 77);
  if (!cuda::copy_now(buffer->data(), content.data(), kBytes)) return 5;
  const auto transport = make({}, test_devices());
  const auto registered = transport->register_memory(
      {.id = RegionId{1}, .base = buffer->data(), .size = kBytes, .place = {MemoryKind::kCuda, device}});
  const auto channel = transport->open_channel({});
  if (!registered || !channel) return 6;
  std::byte* const base = buffer->data();
  const bool said = write_block((*channel)->address()) && write_block((*registered)->export_key()) &&
                    write_block(ByteView(reinterpret_cast<const std::byte*>(&base), sizeof base));
  Bytes now(kBytes);
  for (std::string line; said && std::getline(std::cin, line);) {
    if (!cuda::copy_now(now.data(), buffer->data(), kBytes)) return 7;
    if (!write_block(now)) return 3;
  }
  return 0;
}

/// A channel of this process to a peer's memory, and the memory here.
class IpcTransfers : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (const Status status = cuda::available(); !status) GTEST_SKIP() << status.error().message;
    if (cuda::device_count() <= GetParam()) GTEST_SKIP() << "needs CUDA device " << GetParam();
    if (!cuda::reaches(0, GetParam())) GTEST_SKIP() << "devices 0 and 1 do not reach each other";
    peer_ = std::make_unique<PeerProcess>(GetParam());
    ASSERT_FALSE(peer_->key.empty());
    memory_ = cuda::DeviceBuffer::allocate(0, PeerProcess::kBytes).value();
    fill(1);
    local_ = register_at(memory_.data(), {MemoryKind::kCuda, 0});
    connect();
  }

  void connect() {
    auto remote = transport_->import_region(peer_->region, peer_->key);
    ASSERT_TRUE(remote) << remote.error().message;
    remote_ = std::move(*remote);
    channel_ = std::move(transport_->open_channel({}).value());
    const Status connected = channel_->connect(peer_->address);
    ASSERT_TRUE(connected) << connected.error().message;
    ASSERT_EQ(channel_->state(), ChannelState::kReady);
  }

  void fill(unsigned seed) {
    mine_ = random_bytes(PeerProcess::kBytes, seed);
    ASSERT_TRUE(cuda::copy_now(memory_.data(), mine_.data(), mine_.size()));
  }

  std::shared_ptr<Registration> register_at(std::byte* base, MemoryPlace place) {
    return transport_
        ->register_memory({.id = RegionId{2}, .base = base, .size = PeerProcess::kBytes, .place = place})
        .value();
  }

  std::uint64_t peer_at(std::uint64_t offset) const {
    return reinterpret_cast<std::uint64_t>(peer_->region.base) + offset;
  }

  Status transfer(Operation operation, const std::vector<Segment>& segments) {
    Batch batch{.id = BatchId{++batch_}, .operation = operation, .segments = segments};
    for (const Segment& segment : segments) batch.bytes += segment.size;
    EXPECT_TRUE(channel_->post(batch));
    std::vector<Completion> completions;
    const auto deadline = std::chrono::steady_clock::now() + 20s;
    while (completions.empty()) {
      if (std::chrono::steady_clock::now() > deadline) return fail(ErrorCode::kTimedOut, "no completion");
      channel_->progress(completions);
    }
    EXPECT_EQ(completions[0].id, batch.id);
    EXPECT_FALSE(channel_->busy());
    return completions[0].status;
  }

  /// Blocks of `size` with shuffled ends, the ones here from `base`.
  std::vector<Segment> scattered(std::size_t count, std::uint64_t size, std::byte* base,
                                 const Registration* registration) const {
    std::vector<std::uint64_t> order(count);
    for (std::size_t i = 0; i < count; ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), std::mt19937(4));
    std::vector<Segment> segments;
    for (std::size_t i = 0; i < count; ++i) {
      segments.push_back(
          {base + i * (size + 3), peer_at(order[i] * (size + 5)), size, registration, remote_.get()});
    }
    return segments;
  }

  void expect_written(const std::vector<Segment>& segments, const std::byte* base) {
    Bytes expected = random_bytes(PeerProcess::kBytes, 77);
    for (const Segment& segment : segments) {
      std::memcpy(expected.data() + (segment.remote - peer_at(0)), mine_.data() + (segment.local - base),
                  segment.size);
    }
    EXPECT_TRUE(peer_->content() == expected);
  }

  void expect_read(const std::vector<Segment>& segments, std::byte* base) {
    const Bytes theirs = random_bytes(PeerProcess::kBytes, 77);
    Bytes expected = mine_;
    for (const Segment& segment : segments) {
      std::memcpy(expected.data() + (segment.local - base), theirs.data() + (segment.remote - peer_at(0)),
                  segment.size);
    }
    Bytes got(PeerProcess::kBytes);
    ASSERT_TRUE(cuda::copy_now(got.data(), base, got.size()));
    EXPECT_TRUE(got == expected);
  }

  std::unique_ptr<Transport> transport_ = make({}, test_devices());
  std::unique_ptr<PeerProcess> peer_;
  cuda::DeviceBuffer memory_;
  Bytes mine_;
  std::shared_ptr<Registration> local_;
  std::unique_ptr<RemoteKey> remote_;
  std::unique_ptr<Channel> channel_;
  std::uint64_t batch_ = 0;
};

TEST_P(IpcTransfers, WritesManyBlocks) {
  const auto segments = scattered(4000, 8193, memory_.data(), local_.get());
  const Status status = transfer(Operation::kWrite, segments);
  ASSERT_TRUE(status) << status.error().message;
  expect_written(segments, memory_.data());
}

TEST_P(IpcTransfers, ReadsManyBlocks) {
  const auto segments = scattered(2000, 16384, memory_.data(), local_.get());
  ASSERT_TRUE(transfer(Operation::kRead, segments));
  expect_read(segments, memory_.data());
}

TEST_P(IpcTransfers, MixesLargeAndSmall) {
  const std::vector<Segment> segments = {
      {memory_.data() + 5, peer_at(1), std::uint64_t{40} << 20, local_.get(), remote_.get()},
      {memory_.data(), peer_at((std::uint64_t{41} << 20)), 5, local_.get(), remote_.get()}};
  ASSERT_TRUE(transfer(Operation::kWrite, segments));
  expect_written(segments, memory_.data());
}

TEST_P(IpcTransfers, HostMemoryToAndFromThePeersDevice) {
  Bytes host = mine_;
  const auto registered = register_at(host.data(), {});
  const auto segments = scattered(1000, 16384, host.data(), registered.get());
  ASSERT_TRUE(transfer(Operation::kWrite, segments));
  expect_written(segments, host.data());
  ASSERT_TRUE(transfer(Operation::kRead,
                       {{host.data(), peer_at(0), PeerProcess::kBytes, registered.get(), remote_.get()}}));
  EXPECT_TRUE(host == peer_->content());
}

// Each byte is pinned once. A copy engine refuses what lies across two pinned ranges.
TEST_P(IpcTransfers, HostRegionsThatOverlap) {
  Bytes host = mine_;
  constexpr std::size_t kThird = PeerProcess::kBytes / 3;
  constexpr std::size_t kSecond = kThird + 5;
  const auto region = [&](std::uint32_t id, std::size_t offset, std::size_t size) {
    return transport_->register_memory({.id = RegionId{id}, .base = host.data() + offset, .size = size})
        .value();
  };
  const auto first = region(3, 0, 2 * kThird);
  const auto second = region(4, kSecond, PeerProcess::kBytes - kSecond);
  ASSERT_TRUE(
      transfer(Operation::kWrite, {{host.data(), peer_at(0), 2 * kThird, first.get(), remote_.get()}}));
  const Status across =
      transfer(Operation::kWrite,
               {{host.data() + kSecond, peer_at(kSecond), second->info().size, second.get(), remote_.get()}});
  ASSERT_TRUE(across) << across.error().message;
  EXPECT_TRUE(peer_->content() == mine_);
  const auto segments = scattered(1500, 16384, host.data() + kSecond, second.get());
  ASSERT_TRUE(transfer(Operation::kRead, segments));
  Bytes expected = mine_;
  for (const Segment& segment : segments) {
    std::memcpy(expected.data() + (segment.local - host.data()), mine_.data() + (segment.remote - peer_at(0)),
                segment.size);
  }
  EXPECT_TRUE(host == expected);
}

TEST_P(IpcTransfers, RefusesFreedMemory) {
  memory_ = cuda::DeviceBuffer();
  memory_ = cuda::DeviceBuffer::allocate(0, PeerProcess::kBytes).value();
  const Status status =
      transfer(Operation::kWrite, {{local_->info().base, peer_at(0), 64, local_.get(), remote_.get()}});
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kNotFound);
  // No other transfer suffers.
  local_ = register_at(memory_.data(), {MemoryKind::kCuda, 0});
  EXPECT_TRUE(transfer(Operation::kRead, {{memory_.data(), peer_at(0), 64, local_.get(), remote_.get()}}));
}

TEST_P(IpcTransfers, RefusesWhatLiesOutside) {
  const auto good = scattered(9, 64, memory_.data(), local_.get());
  for (std::size_t bad = 0; bad != good.size(); ++bad) {
    auto segments = good;
    segments[bad].remote = peer_at(PeerProcess::kBytes - 63);
    const Status status = transfer(Operation::kWrite, segments);
    ASSERT_FALSE(status) << "block " << bad;
    EXPECT_EQ(status.error().code, ErrorCode::kOutOfRange);
  }
}

TEST_P(IpcTransfers, OutlivesThePeer) {
  peer_->content();
  const std::uint64_t base = peer_at(0);
  peer_.reset();
  const auto started = std::chrono::steady_clock::now();
  static_cast<void>(
      transfer(Operation::kWrite, {{memory_.data(), base, 1 << 20, local_.get(), remote_.get()}}));
  EXPECT_LT(std::chrono::steady_clock::now() - started, 5s);
  // This process's own device still works.
  EXPECT_TRUE(cuda::copy_now(memory_.data(), mine_.data(), mine_.size()));
}

// Transfers follow one another without a pause from before the signal until after the peer's end. Each ends,
// well or with a reason: the mapping keeps the memory, so that most end well.
TEST_P(IpcTransfers, PeerKilledMidTransfer) {
  constexpr std::size_t kBefore = 10;
  constexpr std::size_t kAfter = 50;
  const Segment all{memory_.data(), peer_at(0), PeerProcess::kBytes, local_.get(), remote_.get()};
  ASSERT_TRUE(transfer(Operation::kWrite, {all}));  // from here on both sides hold the same
  const std::uint64_t first = ++batch_;
  std::vector<Completion> completions;
  std::uint64_t posted = 0;
  std::uint64_t until = ~std::uint64_t{0};
  bool killed = false;
  const auto deadline = std::chrono::steady_clock::now() + 20s;
  while ((posted < until || completions.size() < posted) && std::chrono::steady_clock::now() < deadline) {
    const Batch next{.id = BatchId{first + posted},
                     .operation = posted % 2 == 0 ? Operation::kWrite : Operation::kRead,
                     .segments = {&all, 1},
                     .bytes = PeerProcess::kBytes};
    if (posted < until && channel_->post(next)) ++posted;
    channel_->progress(completions);
    const bool under_way = posted > completions.size();
    if (!killed && under_way && completions.size() >= kBefore) {
      peer_->kill();
      killed = true;
    } else if (killed && until == ~std::uint64_t{0} && under_way && peer_->dead()) {
      until = posted + kAfter;
    }
  }
  ASSERT_TRUE(killed);
  ASSERT_NE(until, ~std::uint64_t{0}) << "no transfer was under way when the peer died";
  ASSERT_EQ(posted, until);
  ASSERT_EQ(completions.size(), posted) << "not all ended in time";
  std::vector<bool> ended(posted);
  for (const Completion& completion : completions) {
    const auto index = static_cast<std::uint64_t>(completion.id) - first;
    ASSERT_LT(index, posted);
    EXPECT_FALSE(ended[index]) << "it ended twice";
    ended[index] = true;
    if (!completion.status) {
      EXPECT_FALSE(completion.status.error().message.empty());
    }
  }
  EXPECT_FALSE(channel_->busy());
  // Whatever the reads brought is right, and this process's CUDA works on.
  Bytes got(PeerProcess::kBytes);
  ASSERT_TRUE(cuda::copy_now(got.data(), memory_.data(), got.size()));
  EXPECT_TRUE(got == mine_);
}

// One after the other without a pause: what is kept ready for that carries them too.
TEST_P(IpcTransfers, ManyShortOnes) {
  std::vector<Segment> segments;
  for (std::size_t i = 0; i < 3000; ++i) {
    const std::size_t size = 1 + i * 37 % 5000;
    segments.push_back(
        {memory_.data() + i * 8192, peer_at(i * 8192 + i % 16), size, local_.get(), remote_.get()});
  }
  for (const Segment& segment : segments) {
    const Status status = transfer(Operation::kWrite, {segment});
    ASSERT_TRUE(status) << status.error().message;
  }
  expect_written(segments, memory_.data());
}

TEST_P(IpcTransfers, CopyEnginesAlone) {
  Options options;
  options.gpu_blocks = 0;
  transport_ = make(options, test_devices(options));
  local_ = register_at(memory_.data(), {MemoryKind::kCuda, 0});
  connect();
  const auto segments = scattered(200, 16384, memory_.data(), local_.get());
  ASSERT_TRUE(transfer(Operation::kWrite, segments));
  expect_written(segments, memory_.data());
}

INSTANTIATE_TEST_SUITE_P(PeerOnDevice, IpcTransfers, ::testing::Values(0, 1));

TEST(IpcWithinAProcess, NeedsNoHandles) {
  if (const Status status = cuda::available(); !status) GTEST_SKIP() << status.error().message;
  constexpr std::size_t kBytes = 1 << 20;
  const int other = cuda::device_count() > 1 && cuda::reaches(0, 1) ? 1 : 0;
  auto mine = cuda::DeviceBuffer::allocate(0, kBytes).value();
  auto theirs = cuda::DeviceBuffer::allocate(other, kBytes).value();
  const Bytes content = random_bytes(kBytes, 8);
  ASSERT_TRUE(cuda::copy_now(mine.data(), content.data(), kBytes));
  const auto here = make({}, test_devices());
  const auto there = make({}, test_devices());
  const RegionInfo region{
      .id = RegionId{1}, .base = theirs.data(), .size = kBytes, .place = {MemoryKind::kCuda, other}};
  const auto registered = there->register_memory(region).value();
  const auto exported = registered->export_key();
  const auto local =
      here->register_memory(
              {.id = RegionId{1}, .base = mine.data(), .size = kBytes, .place = {MemoryKind::kCuda, 0}})
          .value();
  auto key = here->import_region(region, exported);
  ASSERT_TRUE(key) << key.error().message;
  RegionInfo claimed = region;
  claimed.key.fill(std::byte{1});
  EXPECT_EQ(here->import_region(claimed, exported).error().code, ErrorCode::kProtocol);
  const auto channel = here->open_channel({}).value();
  const auto answering = there->open_channel({}).value();
  ASSERT_TRUE(channel->connect(answering->address()));
  const Segment all{mine.data(), reinterpret_cast<std::uint64_t>(theirs.data()), kBytes, local.get(),
                    key->get()};
  ASSERT_TRUE(channel->post(
      {.id = BatchId{1}, .operation = Operation::kWrite, .segments = {&all, 1}, .bytes = kBytes}));
  std::vector<Completion> completions;
  const auto deadline = std::chrono::steady_clock::now() + 10s;
  while (completions.empty() && std::chrono::steady_clock::now() < deadline) channel->progress(completions);
  ASSERT_EQ(completions.size(), 1u);
  ASSERT_TRUE(completions[0].status);
  Bytes got(kBytes);
  ASSERT_TRUE(cuda::copy_now(got.data(), theirs.data(), kBytes));
  EXPECT_TRUE(got == content);
}

}  // namespace
}  // namespace p2p::cuda_ipc

int main(int argc, char** argv) {
  using p2p::cuda_ipc::PeerProcess;
  if (argc == 3 && std::string(argv[1]) == PeerProcess::kFlag) return PeerProcess::serve(std::atoi(argv[2]));
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
