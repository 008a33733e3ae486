// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// The driver on a plugin with the habits of GPUDirect-TCPX and of FasTrak. Each case runs in a process of its
// own with the SOFTNET_HABITS that it names (CMakeLists.txt).
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/unique_fd.h"
#include "drivers/cuda/device.h"
#include "drivers/cuda/place.h"
#include "drivers/nccl_net/defaults.h"
#include "drivers/nccl_net/handle.h"
#include "drivers/nccl_net/receive_manager.h"
#include "drivers/nccl_net/tcpx.h"
#include "drivers/nccl_net/trial.h"
#include "softnet/testing.h"
#include "support/process.h"

namespace softnet::testing {
namespace {

/// Sends `count` messages of `size` bytes one after the other and compares all of them.
bool exchange(Pair& pair, std::size_t size, int count) {
  Memory from(size, 7), to(size);
  const MemoryHandle source = pair.source(from), target = pair.target(to);
  for (int message = 0; message < count; ++message) {
    std::memset(to.data, 0, size);
    if (!pair.sends->post(from.data, size, source).value_or(false)) return false;
    if (!pair.receives->post(to.data, size, target).value_or(false)) return false;
    bool arrived = false, failed = false;
    const bool in_time = until([&] {
      failed = failed || !pair.sends->poll();
      if (!arrived) {
        auto arrival = pair.receives->poll();
        failed = failed || !arrival;
        if (arrival && *arrival) arrived = static_cast<bool>(pair.finish(**arrival, to.data, size));
      }
      return failed || (arrived && pair.sends->empty());
    });
    if (!in_time || failed || std::memcmp(from.data, to.data, size) != 0) return false;
  }
  return true;
}

TEST(Habit, PoolIsImportedOnceHoweverManyAccept) {
  const auto plugin = open_plugin();
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 8; ++thread) {
    threads.emplace_back([&plugin] {
      auto pair = Pair::open(plugin);
      ASSERT_TRUE(pair);
      EXPECT_TRUE(exchange(*pair, 100000, 3));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

std::size_t open_descriptors() {
  std::size_t open = 0;
  for (int fd = 0; fd < 1024; ++fd) open += ::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  return open;
}

TEST(Habit, AClosedListenerTakesNobodysConnection) {
  const auto plugin = open_plugin();
  const auto device = plugin->device(0);
  for (int round = 0; round < 12; ++round) {
    {
      auto pending = Listener::open(plugin, *device);
      ASSERT_TRUE(pending);
      EXPECT_FALSE(pending->poll()->has_value()) << "nobody connects to it";
    }
    auto pair = Pair::open(plugin);
    ASSERT_TRUE(pair) << "round " << round;
    EXPECT_TRUE(exchange(*pair, 5000, 1));
  }
}

TEST(Habit, AListenerThatWasGivenUpIsEndedAndNotUsedAgain) {
  const auto plugin = open_plugin();
  const auto device = plugin->device(0);
  const std::size_t before = open_descriptors();
  std::set<Handle> handles;
  for (int round = 0; round < 50; ++round) {
    auto pending = Listener::open(plugin, *device);
    ASSERT_TRUE(pending) << pending.error().message;
    EXPECT_FALSE(pending->poll()->has_value());
    EXPECT_TRUE(handles.insert(pending->handle()).second);
  }
  EXPECT_TRUE(until([&] {
    (void)Listener::open(plugin, *device);  // looks after those that are kept
    return open_descriptors() <= before;
  }));
}

/// A client in a process of its own, which ends so long after it has begun to connect.
Result<p2p::testing::Process> connect_and_die(const std::shared_ptr<Plugin>& plugin, const Handle& handle,
                                              std::chrono::milliseconds after) {
  return p2p::testing::Process::forked([&]() -> int {
    Connector connector(plugin, *plugin->device(0), handle);
    for (const auto end = Clock::now() + after; Clock::now() < end;) (void)connector.poll();
    ::_exit(0);  // and does not close the connection
  });
}

TEST(Habit, ClientsThatDieWhileTheyConnectSpoilNoOthersConnection) {
  const auto plugin = open_plugin();
  const auto device = plugin->device(0);
  for (int step = 0; step < 5; ++step) {  // each of a client's two connections takes 50 ms (CMakeLists.txt)
    auto listener = Listener::open(plugin, *device);
    ASSERT_TRUE(listener);
    auto child = connect_and_die(plugin, listener->handle(), std::chrono::milliseconds(50 * step + 25));
    ASSERT_TRUE(child);
    EXPECT_TRUE(until([&] {
      const auto polled = listener->poll();
      return !polled || *polled || child->wait(std::chrono::milliseconds(0)).over();
    }));
    EXPECT_TRUE(child->wait(p2p::testing::kLimit).over());
  }
  std::vector<std::thread> good;
  for (int client = 0; client < 50; ++client) {
    good.emplace_back([&] {
      auto pair = Pair::open(plugin);
      ASSERT_TRUE(pair);
      EXPECT_TRUE(exchange(*pair, 100, 1));
    });
  }
  for (std::thread& thread : good) thread.join();
}

TEST(Habit, APeerThatHasGoneRaisesNoSignal) {
  auto pair = Pair::open(open_plugin());
  ASSERT_TRUE(pair);
  Memory from(1 << 20, 1);
  const MemoryHandle source = pair->source(from);
  pair->receives.reset();
  bool failed = false;
  EXPECT_TRUE(until([&] {
    while (!failed && !pair->sends->full()) failed = !pair->sends->post(from.data, from.size, source);
    failed = failed || !pair->sends->poll();
    return failed;
  }));
  // Nothing is left for later either.
  sigset_t pending;
  ::sigpending(&pending);
  EXPECT_EQ(sigismember(&pending, SIGPIPE), 0);
}

TEST(Habit, TheAllowedChunkLosesNoPagesAndEndsNoProcess) {
  ::setenv("NCCL_NSOCKS_PERTHREAD", "4", 1);
  ::setenv("NCCL_DYNAMIC_CHUNK_SIZE", "131072", 1);
  const auto plugin = open_plugin();
  const auto device = plugin->device(0);
  ASSERT_TRUE(is_tcpx(plugin->name()));
  const auto chunk = allowed_chunk(*plugin, *device, 4 << 20);
  ASSERT_TRUE(chunk);
  EXPECT_EQ(*chunk, 131072u) << "two of a message can be on one of the four sockets";
  auto pair = Pair::open(plugin);
  ASSERT_TRUE(pair);
  // Ten pools (CMakeLists.txt): pages that did not come back would be missing.
  EXPECT_TRUE(exchange(*pair, *chunk, 10 * (8 << 20) / 131072));
}

TEST(Habit, NoPciPathIsRefusedWithTheReason) {
  const auto plugin = open_plugin();
  auto pair = Pair::open(plugin);
  ASSERT_TRUE(pair);
  Memory memory(4096);
  const auto refused = register_with(pair->sends->comm(), memory.data, memory.size, abi::kPointerCuda);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("PCI"), std::string::npos) << refused.error().message;
  EXPECT_TRUE(register_with(pair->sends->comm(), memory.data, memory.size, abi::kPointerHost));
}

TEST(Habit, InitThatExitsEndsAChildOnly) {
  const auto plugin = Plugin::open(SOFTNET_PATH, Plugin::Init::kTriedFirst);
  ASSERT_FALSE(plugin);
  EXPECT_NE(plugin.error().message.find("ends the process"), std::string::npos) << plugin.error().message;
}

TEST(Habit, InitThatIsTriedFirstWorksAfterwards) {
  const auto plugin = Plugin::open(SOFTNET_PATH, Plugin::Init::kTriedFirst);
  ASSERT_TRUE(plugin) << plugin.error().message;
  EXPECT_TRUE(Pair::open(*plugin));
}

/// A folder with sockets of RxDM's names, at which somebody listens.
class ReceiveManagerSockets {
 public:
  ReceiveManagerSockets() { ::setenv("NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX", ::mkdtemp(folder_.data()), 1); }
  ~ReceiveManagerSockets() { std::filesystem::remove_all(folder_); }

  void serve(const std::string& name) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    (folder_ + "/" + name).copy(address.sun_path, sizeof address.sun_path - 1);
    UniqueFd& socket = sockets_.emplace_back(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(::listen(socket.get(), 64), 0);
  }

 private:
  std::string folder_ = "/tmp/softnet_rxdm_XXXXXX";
  std::vector<UniqueFd> sockets_;
};

TEST(Habit, AnAcceptThatExitsIsRefusedBefore) {
  ReceiveManagerSockets sockets;
  const auto plugin = Plugin::open(SHY_PLUGIN_PATH);
  ASSERT_TRUE(plugin) << plugin.error().message;
  const std::string bus_id = cuda::bus_id_of(cuda::current_device()).value_or("unknown");
  Status memory = fail(ErrorCode::kSystem, "no byte is left");
  const ReceivingGpu gpu{0, bus_id, [&memory] { return memory; }};
  const auto why = [&] {
    const Status good = check_accepts(**plugin, gpu);
    return good ? "" : good.error().message;
  };
  const auto accept_ends =
      run_in_child(kPatience, [&] { (void)Listener::open(*plugin, *(*plugin)->device(0))->poll(); });
  ASSERT_TRUE(accept_ends && accept_ends->in_time);
  EXPECT_TRUE(!accept_ends->crashed && accept_ends->code == 1);
  EXPECT_NE(why().find("get_gpu_fd_" + bus_id + ": No such file"), std::string::npos) << why();
  sockets.serve("get_gpu_fd_" + bus_id);
  EXPECT_NE(why().find("get_gpu_metadata_" + bus_id), std::string::npos) << why();
  sockets.serve("get_gpu_metadata_" + bus_id);
  EXPECT_NE(why().find("no byte is left"), std::string::npos) << why();
  memory = {};
  EXPECT_EQ(why(), "");
  EXPECT_TRUE(Pair::open(*plugin));
}

TEST(Habit, EveryFieldOfAHandleIsChecked) {
  const auto plugin = open_plugin();
  const auto device = plugin->device(0);
  const auto listener = Listener::open(plugin, *device);
  ASSERT_TRUE(listener);
  const Handle good = listener->handle();
  ASSERT_TRUE(check_handle(good, good, plugin->name()));
  const auto refused = [&](std::size_t at, std::uint8_t value) {
    Handle bad = good;
    bad[at] = std::byte{value};
    Connector connector(plugin, *device, bad);
    const auto polled = connector.poll();
    return !polled && polled.error().code == ErrorCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused(0, 99)) << "address family";
  EXPECT_TRUE(refused(31, 0x7f)) << "first port";
  EXPECT_TRUE(refused(35, 0x7f)) << "ports";
  for (const std::uint8_t sockets : {0, 9, 255})
    EXPECT_TRUE(refused(36, sockets)) << int{sockets} << " sockets";
  for (const std::uint8_t threads : {0, 2, 255})
    EXPECT_TRUE(refused(40, threads)) << int{threads} << " threads";
  EXPECT_TRUE(refused(44, 2)) << "redirected";
  EXPECT_TRUE(refused(44, 1)) << "redirected to no address";
  EXPECT_TRUE(refused(76, 1)) << "padding";
}

TEST(Habit, HandlesOfAnotherVersionAreNotRefused) {
  const auto plugin = open_plugin();
  const auto device = plugin->device(0);
  const auto listener = Listener::open(plugin, *device);
  ASSERT_TRUE(listener);
  EXPECT_FALSE(check_handle(listener->handle(), Handle{}, plugin->name())) << "not as in 3.1.9";
  auto pair = Pair::open(plugin);
  ASSERT_TRUE(pair);
  EXPECT_TRUE(exchange(*pair, 100000, 2));
}

TEST(Habit, BytesOfFasTrakComeWithTheFlushAlone) {
  const auto plugin = open_plugin();
  ASSERT_EQ(plugin->version(), 7);
  EXPECT_FALSE(plugin->net().has_consumed());
  EXPECT_FALSE(plugin->device(0)->properties.unpacks());
  auto pair = Pair::open(plugin);
  ASSERT_TRUE(pair);
  ASSERT_FALSE(pair->unpack);
  Memory from(5000, 3), to(5000);
  const MemoryHandle source = pair->source(from), target = pair->target(to);
  Net& net = plugin->net();
  void* const comm = pair->receives->comm().comm->raw();
  for (int round = 0; round < 3; ++round) {  // a flush with a request is among them
    std::memset(to.data, 0, to.size);
    ASSERT_TRUE(*pair->sends->post(from.data, from.size, source));
    void *received = nullptr, *flushed = nullptr;
    ASSERT_EQ(net.irecv(comm, to.data, to.size, 0, target.raw(), &received), abi::kSuccess);
    int done = 0;
    ASSERT_TRUE(until([&] {
      (void)pair->sends->poll();
      return net.test(received, &done, nullptr) != abi::kSuccess || done != 0;
    }));
    EXPECT_EQ(to.data[0], std::byte{}) << "a host that reads now reads what was there";
    ASSERT_EQ(net.iflush(comm, to.data, to.size, target.raw(), &flushed), abi::kSuccess);
    done = flushed == nullptr ? 1 : 0;
    ASSERT_TRUE(until([&] { return done != 0 || net.test(flushed, &done, nullptr) != abi::kSuccess; }));
    EXPECT_EQ(std::memcmp(from.data, to.data, to.size), 0);
  }
  EXPECT_TRUE(exchange(*pair, 100000, 40)) << "the windows flush";
  EXPECT_NE(net.iflush(comm, to.data, to.size, target.raw(), nullptr), abi::kSuccess) << "once a receive";
}

TEST(Habit, FasTrakMovesNoHostMemory) {
  auto pair = Pair::open(open_plugin());
  ASSERT_TRUE(pair);
  Memory memory(4096);
  const auto host = register_with(pair->sends->comm(), memory.data, memory.size, abi::kPointerHost);
  ASSERT_TRUE(host);
  EXPECT_FALSE(pair->sends->post(memory.data, 1, *host));
  EXPECT_TRUE(pair->sends->post(memory.data, 0, *host));
}

TEST(Habit, ListenersOfFasTrakEndAtOnce) {
  const auto plugin = open_plugin();
  const auto device = plugin->device(0);
  const std::size_t before = open_descriptors();
  for (int round = 0; round < 300; ++round) {  // more than are kept of others
    auto pending = Listener::open(plugin, *device);
    ASSERT_TRUE(pending) << pending.error().message;
    EXPECT_FALSE(pending->poll()->has_value());
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(Habit, HandlesOfFasTrakAreChecked) {
  const auto plugin = open_plugin();
  const auto device = plugin->device(0);
  const auto listener = Listener::open(plugin, *device);
  ASSERT_TRUE(listener);
  const Handle good = listener->handle();
  ASSERT_TRUE(check_handle(good, good, plugin->name()));
  const auto refused = [&](std::size_t at, std::size_t bytes, std::uint8_t value) {
    Handle bad = good;
    std::memset(bad.data() + at, value, bytes);
    Connector connector(plugin, *device, bad);
    const auto polled = connector.poll();
    return !polled && polled.error().code == ErrorCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused(0, 1, 2)) << "version";
  EXPECT_TRUE(refused(32, 1, 'x')) << "no address";
  EXPECT_TRUE(refused(32, 40, '1')) << "no end of the address";
  EXPECT_FALSE(refused(88, 40, 0x41)) << "a state and a pointer are taken out";
  Handle newer = good;
  newer[0] = std::byte{2};
  EXPECT_EQ(check_handle(newer, newer, plugin->name()).error().code, ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace softnet::testing
