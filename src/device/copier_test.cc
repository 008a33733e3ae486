// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "device/copier.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "drivers/cuda/device.h"
#include "p2p/log.h"

namespace p2p::device {
namespace {

using namespace std::chrono_literals;

constexpr Copier::Limits kByKernel{
    .grid = {.ctas = 8}, .bulk_bytes = 1 << 25, .blocks = 64, .lists = 4, .standby_ctas = 4};
constexpr Copier::Limits kByEngine{.bulk_bytes = 0, .bulk_count = 64, .blocks = 64, .lists = 4};

/// No device has this address.
// NOLINTNEXTLINE(performance-no-int-to-ptr)
std::byte* nowhere() { return reinterpret_cast<std::byte*>(std::uintptr_t{0x10}); }

bool ends(Copier& copier, Copier::List& list) {
  const auto deadline = std::chrono::steady_clock::now() + 20s;
  while (std::chrono::steady_clock::now() < deadline) {
    if (copier.finished(list)) return true;
  }
  return false;
}

/// Whether a list of two blocks ends well and with the right bytes.
bool copies_right(Copier& copier) {
  constexpr std::size_t kBytes = 10000;
  auto source = cuda::DeviceBuffer::allocate(copier.device(), kBytes);
  auto target = cuda::DeviceBuffer::allocate(copier.device(), kBytes, true);
  if (!source || !target) return false;
  std::vector<std::byte> sent(kBytes);
  for (std::size_t i = 0; i < kBytes; ++i) sent[i] = static_cast<std::byte>(1 + i % 251);
  if (!cuda::copy_now(source->data(), sent.data(), kBytes)) return false;
  Copier::List* const list = copier.take();
  if (list == nullptr) return false;
  copier.add(*list, {source->data(), target->data() + 5000, 5000});
  copier.add(*list, {source->data() + 5000, target->data(), 5000});
  copier.start(*list);
  const bool ended = ends(copier, *list) && list->status();
  copier.give_back(*list);
  std::vector<std::byte> got(kBytes);
  if (!ended || !cuda::copy_now(got.data(), target->data(), kBytes)) return false;
  return std::memcmp(got.data(), sent.data() + 5000, 5000) == 0 &&
         std::memcmp(got.data() + 5000, sent.data(), 5000) == 0;
}

TEST(CopierOpen, SaysWhyThereIsNone) {
  if (cuda::available()) GTEST_SKIP() << "there is a CUDA device";
  const auto copier = Copier::open(0, kByKernel);
  ASSERT_FALSE(copier);
  EXPECT_EQ(copier.error().code, ErrorCode::kUnavailable);
}

// A copy that a copy engine refuses fails its own list, with CUDA's reason, and no other.
TEST(CopierErrors, ARefusedCopyFailsItsListAlone) {
  if (const Status status = cuda::available(); !status) GTEST_SKIP() << status.error().message;
  const auto buffer = cuda::DeviceBuffer::allocate(0, 1 << 20, true).value();
  auto copier = Copier::open(0, kByEngine).value();
  Copier::List* const before = copier->take();
  Copier::List* const bad = copier->take();
  Copier::List* const after = copier->take();
  copier->add(*before, {buffer.data(), buffer.data() + 1000, 1000});
  copier->add(*bad, {buffer.data(), buffer.data() + 2000, 1000});
  copier->add(*bad, {buffer.data(), buffer.data() + 4000, std::uint64_t{1} << 40});  // beyond what there is
  copier->add(*after, {buffer.data(), buffer.data() + 3000, 1000});
  for (Copier::List* const list : {before, bad, after}) copier->start(*list);
  for (Copier::List* const list : {before, bad, after}) ASSERT_TRUE(ends(*copier, *list));
  EXPECT_TRUE(before->status());
  EXPECT_TRUE(after->status());
  ASSERT_FALSE(bad->status());
  EXPECT_NE(bad->status().error().message.find("cudaError"), std::string::npos)
      << bad->status().error().message;
  for (Copier::List* const list : {before, bad, after}) copier->give_back(*list);
  EXPECT_TRUE(copies_right(*copier)) << "the same copier, afterwards";
  for (int device = 0; device < cuda::device_count(); ++device) {
    EXPECT_TRUE(copies_right(*Copier::open(device, kByEngine).value())) << "another on device " << device;
    EXPECT_TRUE(copies_right(*Copier::open(device, kByKernel).value())) << "by kernel on device " << device;
  }
}

// What a copy that goes on for longer than is waited for still writes is not freed beneath it.
TEST(CopierEnd, DoesNotWaitForEver) {
  using Clock = std::chrono::steady_clock;
  if (const Status status = cuda::available(); !status) GTEST_SKIP() << status.error().message;
  constexpr std::uint64_t kBytes = std::uint64_t{1} << 30;
  const auto buffer = cuda::DeviceBuffer::allocate(0, kBytes);
  const auto host = cuda::HostBuffer::allocate(kBytes);
  if (!buffer || !host) GTEST_SKIP() << (buffer ? host.error() : buffer.error()).message;
  // 640 GiB, which take 12 s over PCIe 5, in so few copies that the driver takes all of them at once.
  constexpr Copier::Limits kLong{.bulk_bytes = 0, .bulk_count = 320, .blocks = 320, .lists = 2};
  auto copier = Copier::open(0, kLong).value();
  while (Copier::List* const list = copier->take()) {
    for (std::size_t i = 0; i < kLong.blocks; ++i) {
      copier->add(*list, {host->data(), buffer->data(), kBytes});
    }
    copier->start(*list);
    ASSERT_TRUE(list->status()) << list->status().error().message;
  }
  std::string said;
  set_log_sink([&](LogLevel, std::string_view line) { said += line; });
  const auto begun = Clock::now();
  copier.reset();
  const auto took = Clock::now() - begun;
  set_log_sink(nullptr);
  EXPECT_GE(took, 5s);
  EXPECT_LT(took, 20s) << "and is not waited for to its end";
  EXPECT_NE(said.find("still copies"), std::string::npos) << said;
  copier = Copier::open(0, kByEngine).value();
  Copier::List* const list = copier->take();
  copier->add(*list, {buffer->data(), buffer->data() + 1000, 1000});
  copier->start(*list);
  EXPECT_TRUE(ends(*copier, *list));
  EXPECT_TRUE(list->status());
}

/// What a kernel's fault leaves of a process; it may not go on in the test's own. Returns 0 if the list
/// failed with CUDA's reason.
int fault_in_a_kernel() {
  const auto buffer = cuda::DeviceBuffer::allocate(0, 1 << 20, true);
  if (!buffer) return 2;
  auto copier = Copier::open(0, kByKernel);
  if (!copier) return 3;
  Copier::List* const list = (*copier)->take();
  for (int i = 0; i < 2; ++i) (*copier)->add(*list, {nowhere(), buffer->data() + i * 64, 64});
  (*copier)->start(*list);
  if (!ends(**copier, *list)) return 4;
  if (list->status()) return 5;
  return list->status().error().message.find("illegal") != std::string::npos ? 0 : 6;
}

TEST(CopierErrors, AFaultInAKernelFailsTheListWithItsReason) {
  if (const Status status = cuda::available(); !status) GTEST_SKIP() << status.error().message;
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process of its own, not a fork of one that uses CUDA
  EXPECT_EXIT(std::_Exit(fault_in_a_kernel()), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace p2p::device
