// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "drivers/nccl_net/comm.h"
#include "drivers/nccl_net/plugin.h"
#include "drivers/nccl_net/window.h"
#include "kernels/unpack.h"

/// For tests that drive softnet through the driver. What softnet does comes from SOFTNET_* of the process.
namespace softnet::testing {

namespace abi = p2p::nccl_net::abi;  // not the C++ ABI's
using namespace p2p;                 // NOLINT: test code
using namespace p2p::nccl_net;       // NOLINT

using Clock = std::chrono::steady_clock;
inline constexpr std::chrono::seconds kPatience{20};

/// Calls `step` until it answers true or the patience is over; both ends of a pair need turns.
template <class Step>
bool until(Step&& step) {
  for (const auto end = Clock::now() + kPatience; Clock::now() < end;) {
    if (step()) return true;
    std::this_thread::yield();
  }
  return false;
}

/// SOFTNET_SHIM: the path of a plugin that stands before softnet.
inline std::shared_ptr<Plugin> open_plugin() {
  const char* const shim = std::getenv("SOFTNET_SHIM");
  auto plugin = Plugin::open(shim == nullptr ? SOFTNET_PATH : shim);
  EXPECT_TRUE(plugin) << plugin.error().message;
  EXPECT_EQ(plugin && (*plugin)->name() == "shim", shim != nullptr);
  return plugin ? *plugin : nullptr;
}

/// Page-aligned memory filled from a seed.
struct Memory {
  explicit Memory(std::size_t bytes, unsigned seed = 0) : storage(bytes + 4096), size(bytes) {
    data = storage.data() + (4096 - reinterpret_cast<std::uintptr_t>(storage.data()) % 4096) % 4096;
    std::mt19937 random(seed);
    for (std::size_t index = 0; seed != 0 && index < bytes; ++index)
      data[index] = static_cast<std::byte>(random());
  }
  std::vector<std::byte> storage;
  std::byte* data = nullptr;
  std::size_t size = 0;
};

/// A comm in one direction, both ends here.
struct Pair {
  std::optional<SendWindow> sends;
  std::optional<ReceiveWindow> receives;
  bool cuda = false;  ///< memory is registered as that of a CUDA device
  bool unpack = false;

  static std::optional<Pair> open(const std::shared_ptr<Plugin>& plugin) {
    auto device = plugin->device(0);
    if (!device) return std::nullopt;
    auto listener = Listener::open(plugin, *device);
    if (!listener) return std::nullopt;
    Connector connector(plugin, *device, listener->handle());
    std::optional<SendComm> sender;
    std::optional<RecvComm> receiver;
    bool failed = false;
    until([&] {
      if (!sender) {
        auto polled = connector.poll();
        failed = failed || !polled;
        if (polled) sender = *polled;
      }
      if (!receiver) {
        auto polled = listener->poll();
        failed = failed || !polled;
        if (polled) receiver = *polled;
      }
      return failed || (sender && receiver);
    });
    if (!sender || !receiver) return std::nullopt;
    Pair pair;
    pair.cuda = (device->properties.pointer_support & abi::kPointerCuda) != 0;
    pair.unpack = receiver->unpack.has_value();
    pair.sends.emplace(*sender);
    pair.receives.emplace(*receiver);
    return pair;
  }

  abi::PointerType type() const { return cuda ? abi::kPointerCuda : abi::kPointerHost; }
  MemoryHandle source(Memory& memory) {
    return *register_with(sends->comm(), memory.data, memory.size, type());
  }
  MemoryHandle target(Memory& memory) {
    return *register_with(receives->comm().comm, memory.data, memory.size, type());
  }

  /// Puts the bytes of an arrival where a receive at `data` wants them, then consumes it.
  ::testing::AssertionResult finish(const Arrival& arrival, std::byte* data, std::size_t size) {
    if (unpack) {
      std::vector<kernels::Fragment> fragments;
      for (const abi::UnpackEntry& entry : arrival.entries) {
        fragments.push_back({entry.source, entry.size, entry.destination});
      }
      if (!kernels::fills(fragments, size))
        return ::testing::AssertionFailure() << "the list does not fill it";
      const kernels::Block block{0, size, data};
      std::vector<kernels::CopyBlock> copies;
      (void)kernels::plan_unpack(receives->comm().unpack->pool, fragments, {&block, 1}, copies);
      kernels::copy_on_host(copies);
    }
    if (auto consumed = receives->consume(); !consumed) {
      return ::testing::AssertionFailure() << consumed.error().message;
    }
    return ::testing::AssertionSuccess();
  }
};

}  // namespace softnet::testing
