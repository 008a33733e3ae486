// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Transfers that wait for a CUDA stream of the program's, over each transport that carries device memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "drivers/cuda/device.h"
#include "drivers/cuda/memory.h"
#include "drivers/cuda/stream.h"
#include "p2p/endpoint.h"
#include "support/stream_hold.h"

namespace p2p {
namespace {

using testing::StreamHold;

constexpr std::chrono::seconds kPatience{30};
constexpr std::size_t kSize = std::size_t{20} << 20;  // many batches, but for `cuda_ipc`
constexpr std::size_t kSmall = 4096;                  // behind it: what other transfers move
using Contents = std::vector<std::byte>;

Contents noise(unsigned seed) {
  std::vector<std::uint64_t> words((kSize + kSmall) / sizeof(std::uint64_t));
  std::mt19937_64 random(seed);
  std::ranges::generate(words, random);
  Contents bytes(kSize + kSmall);
  std::memcpy(bytes.data(), words.data(), bytes.size());
  return bytes;
}

/// Device memory, and its region at an endpoint.
struct Memory {
  cuda::DeviceBuffer buffer;
  MemoryRegion region;

  Memory(Endpoint& endpoint, int device, unsigned seed)
      : buffer(cuda::DeviceBuffer::allocate(device, kSize + kSmall).value()),
        region(endpoint.register_memory(buffer.data(), buffer.size()).value()) {
    EXPECT_TRUE(cuda::copy_now(buffer.data(), noise(seed).data(), buffer.size()));
  }
  Contents get() const {
    Contents bytes(buffer.size());
    EXPECT_TRUE(cuda::copy_now(bytes.data(), buffer.data(), bytes.size()));
    return bytes;
  }
  LocalSpan main() const { return region.span(0, kSize); }
  LocalSpan rest() const { return region.span(kSize, kSmall); }
};

bool same(const Contents& left, const std::byte* right) {
  return std::memcmp(left.data(), right, kSize) == 0;
}

class GpuStream : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const auto available = cuda::available(); !available) GTEST_SKIP() << available.error().message;
    const int other = cuda::device_count() > 1 && cuda::reaches(0, 1) ? 1 : 0;
    left_.emplace(make_endpoint());
    right_.emplace(make_endpoint());
    here_.emplace(*left_, 0, 1);
    there_.emplace(*right_, other, 2);
    auto connection = left_->connect("127.0.0.1", right_->port(), kPatience);
    ASSERT_TRUE(connection) << connection.error().message;
    connection_ = *connection;
    remote_ = connection_.import_region(there_->region.descriptor()).value();
    // All that is made at first uses is there afterwards: some of it would wait for a stream that is held.
    for (int round = 0; round < 3; ++round) {
      expect_done(connection_.write(here_->main(), far(0, kSize)));
      expect_done(connection_.read(here_->main(), far(0, kSize)));
    }
    ASSERT_TRUE(cuda::copy_now(there_->buffer.data(), noise(2).data(), kSize));
    stream_ = cuda::Stream::open(0, cuda::Stream::Priority::kNormal).value();
    pinned_ = cuda::HostBuffer::allocate(kSize).value();
    std::memcpy(pinned_.data(), noise(3).data(), kSize);
  }

  static Endpoint make_endpoint() {
    Options options = *Options::from_environment();
    options.listen_address = "127.0.0.1";
    options.transports = {GetParam()};
    options.streams = 2;
    options.gpu_staging_bytes = std::size_t{8} << 20;
    return Endpoint::create(options).value();
  }

  RemoteSpan far(std::size_t offset, std::size_t size) const {
    return {remote_, reinterpret_cast<std::uint64_t>(there_->buffer.data()) + offset, size};
  }

  static void expect_done(const Transfer& transfer) {
    const auto status = transfer.wait(kPatience);
    EXPECT_TRUE(status) << status.error().message;
  }

  /// Others end, in both directions, while `transfer` waits.
  void expect_waiting(const Transfer& transfer) {
    expect_done(connection_.write(here_->rest(), far(kSize, kSmall)));
    expect_done(connection_.read(here_->rest(), far(kSize, kSmall)));
    EXPECT_FALSE(transfer.done());
  }

  void copy(std::byte* target, const std::byte* source) {
    const cuda::DeviceGuard guard(stream_.device());
    ASSERT_TRUE(stream_.copy(target, source, kSize));
  }

  std::optional<Endpoint> left_, right_;
  std::optional<Memory> here_, there_;
  Connection connection_;
  RemoteRegionId remote_{};
  cuda::Stream stream_;
  cuda::HostBuffer pinned_;
};

TEST_P(GpuStream, AWriteSendsWhatTheStreamHadToWrite) {
  StreamHold hold;
  ASSERT_TRUE(hold.put_on(stream_.handle()));
  copy(here_->buffer.data(), pinned_.data());
  const Transfer write = connection_.write(here_->main(), far(0, kSize), {.cuda_stream = stream_.handle()});
  expect_waiting(write);
  hold.let_go();
  expect_done(write);
  EXPECT_TRUE(same(there_->get(), pinned_.data()));
}

TEST_P(GpuStream, AReadLeavesTheMemoryToTheStreamFirst) {
  const Contents before = here_->get();
  StreamHold hold;
  ASSERT_TRUE(hold.put_on(stream_.handle()));
  copy(pinned_.data(), here_->buffer.data());
  const Transfer read = connection_.read(here_->main(), far(0, kSize), {.cuda_stream = stream_.handle()});
  expect_waiting(read);
  hold.let_go();
  expect_done(read);
  ASSERT_TRUE(stream_.synchronize());
  EXPECT_TRUE(same(before, pinned_.data()));
  EXPECT_TRUE(same(here_->get(), noise(2).data()));
}

TEST_P(GpuStream, WhatTheStreamGetsAfterTheCallIsNotWaitedFor) {
  StreamHold before;
  StreamHold after;
  ASSERT_TRUE(before.put_on(stream_.handle()));
  const PostOptions behind{.cuda_stream = stream_.handle()};
  constexpr std::size_t kHalf = kSize / 2;
  const Transfer write = connection_.write(here_->region.span(0, kHalf), far(0, kHalf), behind);
  const Transfer read = connection_.read(here_->region.span(kHalf, kHalf), far(kHalf, kHalf), behind);
  const auto prepared =
      connection_.prepare_write(std::vector{here_->rest()}, std::vector{far(kSize, kSmall)});
  ASSERT_TRUE(prepared) << prepared.error().message;
  const Transfer posted = prepared->post(behind);
  ASSERT_TRUE(after.put_on(stream_.handle()));
  EXPECT_FALSE(write.done() || read.done() || posted.done());
  before.let_go();
  for (const Transfer& transfer : {write, read, posted}) expect_done(transfer);
  EXPECT_TRUE(after.holds());
}

// The peer is asked for a region that was imported just now, where the transport wants that.
TEST_P(GpuStream, ThatHoldsForTransfersThatWaitForThePeersWordFirst) {
  const auto again = right_->register_memory(there_->buffer.data(), kSize);
  ASSERT_TRUE(again) << again.error().message;
  StreamHold before;
  StreamHold after;
  ASSERT_TRUE(before.put_on(stream_.handle()));
  copy(here_->buffer.data(), pinned_.data());
  remote_ = connection_.import_region(again->descriptor()).value();
  const Transfer write = connection_.write(here_->main(), far(0, kSize), {.cuda_stream = stream_.handle()});
  ASSERT_TRUE(after.put_on(stream_.handle()));
  EXPECT_FALSE(write.done());
  before.let_go();
  expect_done(write);
  EXPECT_TRUE(after.holds());
  EXPECT_TRUE(same(there_->get(), pinned_.data()));
}

TEST_P(GpuStream, TheStreamMayBeDestroyedAfterTheCall) {
  StreamHold hold;
  ASSERT_TRUE(hold.put_on(stream_.handle()));
  copy(here_->buffer.data(), pinned_.data());
  const Transfer write = connection_.write(here_->main(), far(0, kSize), {.cuda_stream = stream_.handle()});
  stream_ = cuda::Stream();
  expect_waiting(write);
  hold.let_go();
  expect_done(write);
  EXPECT_TRUE(same(there_->get(), pinned_.data()));
}

TEST_P(GpuStream, CancelledWhileItWaitsItEndsAtOnce) {
  StreamHold hold;
  ASSERT_TRUE(hold.put_on(stream_.handle()));
  const PostOptions behind{.cuda_stream = stream_.handle()};
  for (const Transfer& transfer : {connection_.write(here_->main(), far(0, kSize), behind),
                                   connection_.read(here_->main(), far(0, kSize), behind)}) {
    transfer.cancel();
    const Status status = transfer.wait(kPatience);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kCancelled) << status.error().message;
  }
  EXPECT_TRUE(hold.holds());
  hold.let_go();
  EXPECT_TRUE(same(there_->get(), noise(2).data()));
}

TEST_P(GpuStream, HostMemoryWaitsAsWell) {
  auto region = left_->register_memory(pinned_.data(), kSize);
  ASSERT_TRUE(region) << region.error().message;
  expect_done(connection_.read(region->span(), far(0, kSize)));
  ASSERT_TRUE(cuda::copy_now(here_->buffer.data(), noise(4).data(), kSize));
  StreamHold hold;
  ASSERT_TRUE(hold.put_on(stream_.handle()));
  copy(pinned_.data(), here_->buffer.data());
  const Transfer write = connection_.write(region->span(), far(0, kSize), {.cuda_stream = stream_.handle()});
  expect_waiting(write);
  hold.let_go();
  expect_done(write);
  EXPECT_TRUE(same(there_->get(), noise(4).data()));
}

// The handle of the legacy default stream; the engine's own streams do not wait for it.
TEST_P(GpuStream, TheLegacyDefaultStreamHasAHandle) {
  void* const legacy = reinterpret_cast<void*>(1);
  const cuda::DeviceGuard guard(0);
  StreamHold hold;
  ASSERT_TRUE(hold.put_on(legacy));
  const Transfer write = connection_.write(here_->main(), far(0, kSize), {.cuda_stream = legacy});
  expect_waiting(write);
  hold.let_go();
  expect_done(write);
  EXPECT_TRUE(same(there_->get(), here_->get().data()));
}

TEST_P(GpuStream, MemoryOfTwoDevicesBehindAStreamOfEither) {
  if (cuda::device_count() < 2) GTEST_SKIP() << "needs two CUDA devices";
  if (GetParam() == "cuda_ipc" && !cuda::reaches(0, 1))
    GTEST_SKIP() << "devices 0 and 1 do not reach each other";
  const Memory second(*left_, 1, 5);
  constexpr std::size_t kHalf = kSize / 2;
  const std::vector<LocalSpan> local{here_->region.span(0, kHalf), second.region.span(kHalf, kHalf)};
  const std::vector<RemoteSpan> there{far(0, kHalf), far(kHalf, kHalf)};
  expect_done(connection_.write(local, there));
  expect_done(connection_.read(local, there));
  for (const int device : {0, 1}) {
    SCOPED_TRACE(device);
    const auto stream = cuda::Stream::open(device, cuda::Stream::Priority::kNormal).value();
    for (const bool writes : {true, false}) {
      StreamHold hold;
      ASSERT_TRUE(hold.put_on(stream.handle()));
      const PostOptions behind{.cuda_stream = stream.handle()};
      const Transfer transfer =
          writes ? connection_.write(local, there, behind) : connection_.read(local, there, behind);
      expect_waiting(transfer);
      hold.let_go();
      expect_done(transfer);
      const Contents got = there_->get();
      EXPECT_EQ(std::memcmp(got.data(), here_->get().data(), kHalf), 0);
      EXPECT_EQ(std::memcmp(got.data() + kHalf, second.get().data() + kHalf, kHalf), 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Over, GpuStream, ::testing::Values("tcp", "cuda_ipc"),
                         [](const auto& parameter) { return parameter.param; });

}  // namespace
}  // namespace p2p
