// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "drivers/cuda/device.h"
#include "drivers/cuda/error.h"
#include "drivers/cuda/ipc.h"
#include "drivers/cuda/mark.h"
#include "drivers/cuda/memory.h"
#include "drivers/cuda/place.h"
#include "drivers/cuda/stream.h"
#include "support/eventually.h"
#include "support/stream_hold.h"

namespace p2p::cuda {
namespace {

TEST(CudaPlace, OrdinaryMemoryIsHostMemory) {
  std::vector<std::byte> memory(64);
  const auto place = place_of(memory.data());
  ASSERT_TRUE(place) << place.error().message;
  EXPECT_EQ(*place, MemoryPlace{});
  EXPECT_FALSE(allocation_of(memory.data()));
  EXPECT_FALSE(pinned(memory.data(), 64));
}

TEST(CudaDevice, SaysWhyThereIsNone) {
  const Status status = available();
  if (status) {
    EXPECT_GT(device_count(), 0);
    return;
  }
  EXPECT_EQ(status.error().code, ErrorCode::kUnavailable);
  EXPECT_FALSE(status.error().message.empty());
  EXPECT_EQ(device_count(), 0);
  EXPECT_FALSE(find_device(DeviceUuid{}));
  const auto stream = Stream::open(0, Stream::Priority::kHigh);
  ASSERT_FALSE(stream);
  EXPECT_EQ(stream.error().code, ErrorCode::kUnavailable);
  const auto mark = StreamMark::set(reinterpret_cast<void*>(1));
  ASSERT_FALSE(mark);
  EXPECT_EQ(mark.error().code, ErrorCode::kUnavailable);
  EXPECT_FALSE(HostBuffer::allocate(4096));
  EXPECT_FALSE(DeviceBuffer::allocate(0, 4096));
}

TEST(CudaError, NamesAttemptAndCause) {
  EXPECT_TRUE(check(0, "nothing"));
  const Error error = error_of(2, "allocate 5 bytes");
  EXPECT_NE(error.message.find("allocate 5 bytes: "), std::string::npos) << error.message;
}

class OnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const Status status = available(); !status) GTEST_SKIP() << status.error().message;
  }
};

TEST_F(OnDevice, FindsAllocationsAroundPointers) {
  auto buffer = DeviceBuffer::allocate(0, 1 << 20);
  ASSERT_TRUE(buffer) << buffer.error().message;
  const std::byte* inside = buffer->data() + 4097;
  EXPECT_EQ(*place_of(inside), (MemoryPlace{MemoryKind::kCuda, 0}));
  const auto allocation = allocation_of(inside);
  ASSERT_TRUE(allocation) << allocation.error().message;
  EXPECT_EQ(allocation->base, buffer->data());
  EXPECT_GE(allocation->size, buffer->size());
  EXPECT_EQ(allocation->device, 0);
  EXPECT_TRUE(allocation->shareable);
  EXPECT_TRUE(ipc_handle_of(inside));
}

TEST_F(OnDevice, KnowsWhetherARangeIsOneAllocation) {
  auto buffer = DeviceBuffer::allocate(0, 1 << 22).value();
  const Allocation allocation = allocation_of(buffer.data()).value();
  EXPECT_FALSE(allocation.mapped);
  EXPECT_TRUE(check_range(allocation, allocation.base, allocation.size));
  EXPECT_TRUE(check_range(allocation, allocation.base + 5, allocation.size - 5));
  for (const std::uint64_t size : {allocation.size - 4, ~std::uint64_t{0}}) {
    const Status beyond = check_range(allocation, allocation.base + 5, size);
    ASSERT_FALSE(beyond) << size;
    EXPECT_EQ(beyond.error().code, ErrorCode::kUnavailable);
  }
  EXPECT_TRUE(is_there(allocation, buffer.data() + 100));
  buffer = DeviceBuffer();
  EXPECT_FALSE(is_there(allocation, allocation.base));
  buffer = DeviceBuffer::allocate(0, 1 << 22).value();  // at the same address, as a rule
  EXPECT_FALSE(is_there(allocation, allocation.base));
}

TEST_F(OnDevice, FreedMemoryIsNotTakenForTheOldAllocation) {
  auto first = DeviceBuffer::allocate(0, 1 << 22);
  ASSERT_TRUE(first);
  const auto before = allocation_of(first->data());
  ASSERT_TRUE(before);
  std::byte* const address = first->data();
  *first = DeviceBuffer();
  const auto gone = allocation_of(address);
  EXPECT_TRUE(!gone || gone->buffer_id != before->buffer_id);
  auto second = DeviceBuffer::allocate(0, 1 << 22);
  ASSERT_TRUE(second);
  EXPECT_NE(allocation_of(second->data())->buffer_id, before->buffer_id);
}

TEST_F(OnDevice, PinnedMemoryIsHostMemory) {
  const auto buffer = HostBuffer::allocate(1 << 16);
  ASSERT_TRUE(buffer) << buffer.error().message;
  EXPECT_EQ(*place_of(buffer->data()), MemoryPlace{});
  EXPECT_TRUE(pinned(buffer->data(), 1 << 16));
  std::vector<std::byte> plain(1 << 16);
  {
    const auto pin = HostPin::pin(plain.data(), plain.size());
    ASSERT_TRUE(pin) << pin.error().message;
    EXPECT_TRUE(pinned(plain.data(), plain.size()));
    EXPECT_TRUE(pinned(plain.data() + 100, plain.size() - 100));
    EXPECT_FALSE(pinned(plain.data() + 100, plain.size() + (1 << 20)));
  }
  EXPECT_FALSE(pinned(plain.data(), plain.size()));
}

TEST_F(OnDevice, PinnedMemoryIsAskedOfItsNode) {
  const auto policy_of = [](const void* memory) {
    int policy = -1;
    static_cast<void>(::syscall(SYS_get_mempolicy, &policy, nullptr, 0, memory, MPOL_F_ADDR));
    return policy;
  };
  constexpr std::size_t kBytes = std::size_t{4} << 20;
  for (const int nowhere : {-1, 1023, 1 << 20}) EXPECT_TRUE(HostBuffer::allocate(kBytes, nowhere)) << nowhere;
  const auto buffer = HostBuffer::allocate(kBytes, 0);
  ASSERT_TRUE(buffer) << buffer.error().message;
  std::memset(buffer->data(), 1, kBytes);
  std::vector<std::byte> own(kBytes);
  unsigned long node = 1;
  auto* const page = own.data() + 4096 - reinterpret_cast<std::uintptr_t>(own.data()) % 4096;
  if (::syscall(SYS_mbind, page, 4096, MPOL_PREFERRED, &node, 2, 0) != 0) GTEST_SKIP() << "mbind is refused";
  if (policy_of(page) != MPOL_PREFERRED) GTEST_SKIP() << "policies of memory cannot be read";
  EXPECT_EQ(policy_of(buffer->data()), MPOL_PREFERRED);
}

TEST_F(OnDevice, SignalFollowsTheCopy) {
  auto device = DeviceBuffer::allocate(0, 1 << 24);
  auto host = HostBuffer::allocate(1 << 24);
  auto words = HostBuffer::allocate(64);
  auto stream = Stream::open(0, Stream::Priority::kHigh);
  ASSERT_TRUE(device && host && words && stream);
  std::memset(host->data(), 0x5a, host->size());
  auto* const word = reinterpret_cast<std::uint32_t*>(words->data());
  *word = 0;
  const DeviceGuard guard(0);
  ASSERT_TRUE(stream->copy(device->data(), host->data(), host->size()));
  std::vector<std::byte> back(1 << 24);
  ASSERT_TRUE(stream->signal(word, 7));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (std::atomic_ref<std::uint32_t>(*word).load(std::memory_order_acquire) != 7) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
  }
  ASSERT_TRUE(copy_now(back.data(), device->data(), back.size()));
  EXPECT_EQ(std::memcmp(back.data(), host->data(), back.size()), 0);
  EXPECT_TRUE(*stream->idle());
}

/// The driver's own word on the contexts of a thread, past the code under test. Each function answers 0 for
/// success.
struct Contexts {
  int (*get_current)(void** context) = nullptr;
  int (*create)(void** context, unsigned flags, int device) = nullptr;
  int (*destroy)(void* context) = nullptr;

  Contexts() {
    void* const library = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (library == nullptr) return;
    get_current = reinterpret_cast<int (*)(void**)>(::dlsym(library, "cuCtxGetCurrent"));
    create = reinterpret_cast<int (*)(void**, unsigned, int)>(::dlsym(library, "cuCtxCreate_v2"));
    destroy = reinterpret_cast<int (*)(void*)>(::dlsym(library, "cuCtxDestroy_v2"));
  }

  /// Of this thread.
  void* current() const {
    void* context = nullptr;
    EXPECT_EQ(get_current(&context), 0);
    return context;
  }
};

TEST_F(OnDevice, GuardLeavesThreadsWithoutAContextAsTheyWere) {
  const Contexts contexts;
  std::thread([&] {
    ASSERT_EQ(contexts.current(), nullptr);
    for (int device = 0; device < device_count(); ++device) {
      {
        const DeviceGuard guard(device);
        EXPECT_TRUE(guard.status());
        EXPECT_NE(contexts.current(), nullptr);
        EXPECT_EQ(current_device(), device);
      }
      EXPECT_EQ(contexts.current(), nullptr) << "after a guard for device " << device;
    }
    {
      const DeviceGuard guard(kAnyDevice);
      EXPECT_NE(contexts.current(), nullptr);
    }
    EXPECT_EQ(contexts.current(), nullptr) << "after a guard for any device";
  }).join();
}

TEST_F(OnDevice, GuardPutsBackTheContextThatWasCurrent) {
  const Contexts contexts;
  std::thread([&] {
    void* foreign = nullptr;  // no device's primary one
    ASSERT_NE(contexts.create, nullptr);
    ASSERT_EQ(contexts.create(&foreign, 0, 0), 0);
    ASSERT_EQ(contexts.current(), foreign);
    for (int device = 0; device < device_count(); ++device) {
      {
        const DeviceGuard guard(device);
        EXPECT_TRUE(guard.status());
        EXPECT_NE(contexts.current(), foreign);
        EXPECT_TRUE(DeviceBuffer::allocate(device, 4096));
      }
      EXPECT_EQ(contexts.current(), foreign) << "after a guard for device " << device;
    }
    EXPECT_EQ(contexts.destroy(foreign), 0);
    const DeviceGuard last(device_count() - 1);
    void* const primary = contexts.current();
    {
      const DeviceGuard guard(0);
      EXPECT_EQ(current_device(), 0);
    }
    EXPECT_EQ(contexts.current(), primary) << "of the last device";
  }).join();
}

/// In a process that has not used CUDA yet: 0 if a guard for the last device makes a context there alone.
int guard_of_the_last_device() {
  const int device = device_count() - 1;
  if (!active_devices().empty()) return 2;
  {
    const DeviceGuard guard(device);
    if (!guard.status()) return 3;
  }
  return active_devices() == std::vector{device} ? 0 : 4;
}

TEST_F(OnDevice, GuardMakesNoContextOnOtherDevices) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a fresh process, not a fork of this one
  EXPECT_EXIT(std::_Exit(guard_of_the_last_device()), ::testing::ExitedWithCode(0), "");
}

TEST_F(OnDevice, DevicesAreFoundByUuid) {
  for (int device = 0; device < device_count(); ++device) {
    const auto uuid = uuid_of(device);
    ASSERT_TRUE(uuid);
    EXPECT_EQ(find_device(*uuid), device);
  }
}

TEST_F(OnDevice, MarksTellWhenTheWorkBeforeThemIsDone) {
  const int last = device_count() - 1;
  auto stream = Stream::open(last, Stream::Priority::kNormal);
  ASSERT_TRUE(stream);
  p2p::testing::StreamHold before;
  p2p::testing::StreamHold after;
  ASSERT_TRUE(before.put_on(stream->handle()));
  auto mark = StreamMark::set(stream->handle());  // no context is current, or another device's
  ASSERT_TRUE(mark) << mark.error().message;
  ASSERT_TRUE(after.put_on(stream->handle()));
  EXPECT_FALSE(*mark->passed());
  before.let_go();
  EXPECT_TRUE(p2p::testing::eventually([&] { return *mark->passed(); }));
  EXPECT_TRUE(after.holds());
  *stream = Stream();
  EXPECT_TRUE(*mark->passed());
}

TEST_F(OnDevice, DefaultStreamsCanBeMarked) {
  void* const kLegacy = reinterpret_cast<void*>(1);
  void* const kPerThread = reinterpret_cast<void*>(2);
  const DeviceGuard guard(0);
  for (void* const stream : {kLegacy, kPerThread}) {
    p2p::testing::StreamHold hold;
    ASSERT_TRUE(hold.put_on(stream));
    const auto mark = StreamMark::set(stream);
    ASSERT_TRUE(mark) << mark.error().message;
    EXPECT_FALSE(*mark->passed());
    hold.let_go();
    EXPECT_TRUE(p2p::testing::eventually([&] { return *mark->passed(); }));
  }
}

template <class Function>
Function* driver_function(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(::dlopen("libcuda.so.1", RTLD_NOW), name));
}

// In global mode CUDA refuses unsafe calls of every thread, and what was captured would be lost with them.
TEST_F(OnDevice, GraphsThatTheProgramCapturesAreKept) {
  constexpr int kGlobal = 0;
  auto* const begin = driver_function<int(void*, int)>("cuStreamBeginCapture_v2");
  auto* const end = driver_function<int(void*, void**)>("cuStreamEndCapture");
  auto* const destroy = driver_function<int(void*)>("cuGraphDestroy");
  auto* const exchange_mode = driver_function<int(int*)>("cuThreadExchangeStreamCaptureMode");
  ASSERT_TRUE(begin != nullptr && end != nullptr && destroy != nullptr && exchange_mode != nullptr);
  auto captured = Stream::open(0, Stream::Priority::kNormal).value();
  auto memory = DeviceBuffer::allocate(0, 4096).value();
  std::vector<std::byte> plain(1 << 16);
  const auto use_all = [&plain] {
    auto device = DeviceBuffer::allocate(0, 1 << 20, true);
    auto host = HostBuffer::allocate(4096);
    auto large = HostBuffer::allocate(4 << 20);
    auto pin = HostPin::pin(plain.data(), plain.size());
    auto stream = Stream::open(0, Stream::Priority::kHigh);
    ASSERT_TRUE(device && host && large && pin && stream);
    const auto mark = StreamMark::set(stream->handle());
    ASSERT_TRUE(mark) << mark.error().message;
    EXPECT_TRUE(mark->passed());
    EXPECT_TRUE(stream->idle());
    EXPECT_TRUE(stream->synchronize());
    EXPECT_TRUE(copy_now(device->data(), host->data(), 4096));
  };
  ASSERT_EQ(begin(captured.handle(), kGlobal), 0);
  std::thread(use_all).join();
  use_all();
  const auto mark = StreamMark::set(captured.handle());
  ASSERT_FALSE(mark);
  EXPECT_EQ(mark.error().code, ErrorCode::kInvalidArgument) << mark.error().message;
  {
    const DeviceGuard guard(0);
    EXPECT_TRUE(captured.copy(memory.data(), memory.data() + 2048, 2048));
  }
  void* graph = nullptr;
  EXPECT_EQ(end(captured.handle(), &graph), 0);
  ASSERT_NE(graph, nullptr);
  EXPECT_EQ(destroy(graph), 0);
  int mode = kGlobal;
  EXPECT_EQ(exchange_mode(&mode), 0);
  EXPECT_EQ(mode, kGlobal) << "the mode of this thread was not put back";
}

}  // namespace
}  // namespace p2p::cuda
