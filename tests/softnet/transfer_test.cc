// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Runs once for each of softnet's modes: what must hold in all of them.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "softnet/testing.h"

namespace softnet::testing {
namespace {

struct Message {
  std::size_t offset = 0;
  std::size_t size = 0;
};

std::vector<Message> lay_out(std::span<const std::size_t> sizes) {
  std::vector<Message> messages;
  std::size_t offset = 0;
  for (const std::size_t size : sizes) {
    messages.push_back({offset, size});
    offset += size;
  }
  return messages;
}

/// Sends all messages through both windows as full as they get, and compares all bytes.
void transfer(Pair& pair, std::span<const std::size_t> sizes) {
  const std::vector<Message> messages = lay_out(sizes);
  const std::size_t total = messages.back().offset + messages.back().size;
  Memory from(total, 3), to(total);
  const MemoryHandle source = pair.source(from), target = pair.target(to);
  std::size_t sent = 0, posted = 0, arrived = 0;
  std::string failure;
  const auto step = [&]() -> Status {
    for (; sent < messages.size(); ++sent) {
      const auto taken = pair.sends->post(from.data + messages[sent].offset, messages[sent].size, source);
      if (!taken) return tl::unexpected(taken.error());
      if (!*taken) break;
    }
    for (; posted < messages.size(); ++posted) {
      const auto taken =
          pair.receives->post(to.data + messages[posted].offset, messages[posted].size, target);
      if (!taken) return tl::unexpected(taken.error());
      if (!*taken) break;
    }
    if (auto polled = pair.sends->poll(); !polled) return tl::unexpected(polled.error());
    auto arrival = pair.receives->poll();
    if (!arrival) return tl::unexpected(arrival.error());
    if (*arrival) {
      EXPECT_EQ((*arrival)->sequence % 16, arrived % 16);
      EXPECT_TRUE(pair.finish(**arrival, to.data + messages[arrived].offset, messages[arrived].size));
      ++arrived;
    }
    return {};
  };
  EXPECT_TRUE(until([&] {
    if (auto status = step(); !status) failure = status.error().message;
    return !failure.empty() || (arrived == messages.size() && pair.sends->empty());
  })) << arrived
      << " of " << messages.size();
  EXPECT_EQ(failure, "");
  EXPECT_EQ(std::memcmp(from.data, to.data, total), 0);
}

TEST(Transfer, CarriesEverySize) {
  auto pair = Pair::open(open_plugin());
  ASSERT_TRUE(pair);
  const std::size_t sizes[] = {
      1, 0,       15,     16,      17, 4095, 4096, 4097,          8192, 65537,   100000,
      0, 1 << 19, 777777, 4 << 20, 3,  0,    0,    (1 << 19) + 1, 2,    1 << 20, 12345};
  transfer(*pair, sizes);
}

TEST(Transfer, CarriesManySmallMessages) {
  auto pair = Pair::open(open_plugin());
  ASSERT_TRUE(pair);
  std::vector<std::size_t> sizes;
  for (std::size_t count = 0; count < 500; ++count) sizes.push_back(count % 97);
  transfer(*pair, sizes);
}

TEST(Transfer, KeepsAnUnconsumedReceiveWhileOthersCome) {
  auto pair = Pair::open(open_plugin());
  ASSERT_TRUE(pair);
  Memory from(16 * 9000, 5), to(from.size);
  const MemoryHandle source = pair->source(from), target = pair->target(to);
  for (std::size_t count = 0; count < 16; ++count) {
    ASSERT_TRUE(*pair->sends->post(from.data + 9000 * count, 9000, source));
    ASSERT_TRUE(*pair->receives->post(to.data + 9000 * count, 9000, target));
  }
  std::vector<Arrival> arrivals;
  ASSERT_TRUE(until([&] {
    EXPECT_TRUE(pair->sends->poll());
    auto arrival = pair->receives->poll();
    if (arrival && *arrival) arrivals.push_back(**arrival);
    return arrivals.size() == 16;
  }));
  // All are read only now: none may have been overwritten by a later one.
  for (std::size_t count = 0; count < 16; ++count) {
    ASSERT_TRUE(pair->finish(arrivals[count], to.data + 9000 * count, 9000));
  }
  EXPECT_EQ(std::memcmp(from.data, to.data, from.size), 0);
}

TEST(Transfer, AShorterMessageLeavesTheRestAlone) {
  auto pair = Pair::open(open_plugin());
  ASSERT_TRUE(pair);
  Memory from(100, 9), to(4096);
  const MemoryHandle source = pair->source(from), target = pair->target(to);
  ASSERT_TRUE(*pair->sends->post(from.data, 100, source));
  ASSERT_TRUE(*pair->receives->post(to.data, 4096, target));
  ASSERT_TRUE(until([&] {
    EXPECT_TRUE(pair->sends->poll());
    auto arrival = pair->receives->poll();
    return arrival && *arrival && pair->finish(**arrival, to.data, 100);
  }));
  EXPECT_EQ(std::memcmp(from.data, to.data, 100), 0);
  EXPECT_EQ(to.data[100], std::byte{0});
}

TEST(Transfer, AMessageLongerThanItsReceiveIsRefused) {
  auto pair = Pair::open(open_plugin());
  ASSERT_TRUE(pair);
  Memory from(8192, 9), to(4096);
  const MemoryHandle source = pair->source(from), target = pair->target(to);
  ASSERT_TRUE(*pair->sends->post(from.data, 8192, source));
  ASSERT_TRUE(*pair->receives->post(to.data, 4096, target));
  std::string failure;
  ASSERT_TRUE(until([&] {
    (void)pair->sends->poll();
    auto arrival = pair->receives->poll();
    if (!arrival) failure = arrival.error().message;
    return !arrival;
  }));
  EXPECT_NE(failure.find("invalid usage (5)"), std::string::npos) << failure;
}

TEST(Transfer, APeerThatClosesIsNoticed) {
  auto pair = Pair::open(open_plugin());
  ASSERT_TRUE(pair);
  Memory to(4096);
  const MemoryHandle target = pair->target(to);
  ASSERT_TRUE(*pair->receives->post(to.data, 4096, target));
  EXPECT_FALSE(*pair->receives->poll());
  pair->sends.reset();
  ErrorCode code{};
  ASSERT_TRUE(until([&] {
    auto arrival = pair->receives->poll();
    if (!arrival) code = arrival.error().code;
    return !arrival;
  }));
  EXPECT_EQ(code, ErrorCode::kPeerGone);
}

TEST(Transfer, ClosesWithPostedRequests) {
  auto pair = Pair::open(open_plugin());
  ASSERT_TRUE(pair);
  Memory from(1 << 20, 1), to(1 << 20);
  const MemoryHandle source = pair->source(from), target = pair->target(to);
  for (int count = 0; count < 16; ++count) {
    ASSERT_TRUE(*pair->sends->post(from.data, from.size, source));
    ASSERT_TRUE(*pair->receives->post(to.data, to.size, target));
  }
  EXPECT_TRUE(pair->sends->poll());
  EXPECT_TRUE(pair->receives->poll());
}

TEST(Transfer, SeveralCommsAndThreadsAtOnce) {
  const auto plugin = open_plugin();
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&plugin] {
      for (int comm = 0; comm < 3; ++comm) {
        auto pair = Pair::open(plugin);
        ASSERT_TRUE(pair);
        const std::vector<std::size_t> sizes(40, 30001);
        transfer(*pair, sizes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Contract, SeventeenthRequestFailsAndOthersDoNot) {
  const auto plugin = open_plugin();
  auto pair = Pair::open(plugin);
  ASSERT_TRUE(pair);
  Memory memory(4096);
  const MemoryHandle source = pair->source(memory);
  Net& net = plugin->net();
  void* request = nullptr;
  for (int count = 0; count < 16; ++count) {
    EXPECT_EQ(net.isend(pair->sends->comm()->raw(), memory.data, 1, count, source.raw(), &request), 0);
  }
  EXPECT_EQ(net.isend(pair->sends->comm()->raw(), memory.data, 1, 0, source.raw(), &request), 3);
  int done = 1;
  EXPECT_EQ(net.test(request, &done, nullptr), 3) << "not the oldest";
  EXPECT_EQ(done, 0);
}

TEST(Contract, RefusesWhatTheAbiRefuses) {
  const auto plugin = open_plugin();
  auto pair = Pair::open(plugin);
  ASSERT_TRUE(pair);
  Memory memory(4096);
  Net& net = plugin->net();
  void* const comm = pair->sends->comm()->raw();
  void* out = nullptr;
  EXPECT_EQ(net.register_memory(nullptr, memory.data, 4096, 1, &out), 3);
  EXPECT_EQ(net.register_memory(comm, memory.data, 4096, 9, &out), 3);
  EXPECT_EQ(net.deregister_memory(comm, nullptr), 0);
  EXPECT_EQ(net.isend(comm, memory.data, 1, 0, nullptr, &out), 3);
  EXPECT_EQ(net.test(nullptr, nullptr, nullptr), 3);
  EXPECT_NE(net.init(nullptr), 0) << "a second init";
}

TEST(Contract, AnEmptyMessageNeedsNoAddress) {
  const auto plugin = open_plugin();
  auto pair = Pair::open(plugin);
  ASSERT_TRUE(pair);
  Memory memory(4096);
  const MemoryHandle source = pair->source(memory), target = pair->target(memory);
  Net& net = plugin->net();
  void *sent = nullptr, *received = nullptr;
  EXPECT_EQ(net.isend(pair->sends->comm()->raw(), nullptr, 0, 0, source.raw(), &sent), 0);
  EXPECT_EQ(net.irecv(pair->receives->comm().comm->raw(), nullptr, 0, 0, target.raw(), &received), 0);
  int send_done = 0, receive_done = 0;
  EXPECT_TRUE(until([&] {
    if (send_done == 0) {
      EXPECT_EQ(net.test(sent, &send_done, nullptr), 0);
    }
    if (receive_done == 0) {
      EXPECT_EQ(net.test(received, &receive_done, nullptr), 0);
    }
    return send_done != 0 && receive_done != 0;
  }));
}

/// A receiver that posts nothing for longer than the timeout, here a second.
TEST(Patience, AFullReceiverIsNotADeadOne) {
  auto pair = Pair::open(open_plugin());
  ASSERT_TRUE(pair);
  constexpr std::size_t kSize = 16 << 20;  // more than sockets hold
  Memory from(kSize, 3), to(kSize);
  const MemoryHandle source = pair->source(from), target = pair->target(to);
  ASSERT_TRUE(*pair->sends->post(from.data, kSize, source));
  const auto end = Clock::now() + std::chrono::milliseconds(3500);
  while (Clock::now() < end) {
    const auto polled = pair->sends->poll();
    ASSERT_TRUE(polled) << polled.error().message;
    ASSERT_FALSE(*polled);
  }
  ASSERT_TRUE(*pair->receives->post(to.data, kSize, target));
  std::string failure;
  EXPECT_TRUE(until([&] {
    if (auto sent = pair->sends->poll(); !sent) failure = sent.error().message;
    auto arrival = pair->receives->poll();
    if (!arrival) failure = arrival.error().message;
    return !failure.empty() || (arrival->has_value() && pair->finish(**arrival, to.data, kSize));
  }));
  EXPECT_EQ(failure, "");
  EXPECT_EQ(std::memcmp(from.data, to.data, kSize), 0);
}

/// A connection that had nothing to do for longer than the timeout, here a second.
TEST(Pause, IsNoSilence) {
  auto pair = Pair::open(open_plugin());
  ASSERT_TRUE(pair);
  constexpr std::size_t kSize = 100'003;
  Memory from(kSize, 3), to(kSize);
  const MemoryHandle source = pair->source(from), target = pair->target(to);
  for (int round = 0; round < 5; ++round) {
    const auto next = Clock::now() + std::chrono::milliseconds(1200);
    EXPECT_TRUE(until([&] { return Clock::now() >= next; }));
    ASSERT_TRUE(*pair->sends->post(from.data, kSize, source));
    std::string failure;
    const auto turn = [&] {
      if (pair->sends->empty()) return;
      if (auto sent = pair->sends->poll(); !sent) failure = sent.error().message;
    };
    for (int count = 0; count < 100; ++count) turn();
    ASSERT_TRUE(*pair->receives->post(to.data, kSize, target));
    bool came = false;
    EXPECT_TRUE(until([&] {
      turn();
      auto arrival = pair->receives->poll();
      if (!arrival) failure = arrival.error().message;
      if (arrival && *arrival) came = static_cast<bool>(pair->finish(**arrival, to.data, kSize));
      return !failure.empty() || (came && pair->sends->empty());
    }));
    ASSERT_EQ(failure, "") << "round " << round;
  }
}

int dial(const std::byte* handle) {
  sockaddr_in address;  // in front in every handle
  std::memcpy(&address, handle, sizeof address);
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  return fd;
}

TEST(Strangers, SilentOnesHoldNobodyBack) {
  const auto plugin = open_plugin();
  Net& net = plugin->net();
  alignas(8) std::byte handle[128];
  void* listener = nullptr;
  ASSERT_EQ(net.listen(0, handle, &listener), 0);
  std::vector<int> strangers;
  void *send = nullptr, *receive = nullptr;
  for (int count = 0; count < 200; ++count) {
    strangers.push_back(dial(handle));
    EXPECT_EQ(net.accept(listener, &receive, nullptr), 0);
  }
  const auto start = Clock::now();
  EXPECT_TRUE(until([&] {
    if (send == nullptr) {
      EXPECT_EQ(net.connect(0, handle, &send, nullptr), 0);
    }
    if (receive == nullptr) {
      EXPECT_EQ(net.accept(listener, &receive, nullptr), 0);
    }
    return send != nullptr && receive != nullptr;
  }));
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(10)) << "the timeout is 20 s";
  for (const int fd : strangers) ::close(fd);
  EXPECT_EQ(net.close_send(send), 0);
  EXPECT_EQ(net.close_recv(receive), 0);
  EXPECT_EQ(net.close_listen(listener), 0);
}

TEST(Abandoned, ConnectsKeepNoDescriptor) {
  const auto plugin = open_plugin();
  Net& net = plugin->net();
  const auto open_descriptors = [] {
    int open = 0;
    for (int fd = 0; fd < 1024; ++fd) open += ::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
    return open;
  };
  alignas(8) std::byte handle[128];
  void* listener = nullptr;
  ASSERT_EQ(net.listen(0, handle, &listener), 0);
  const int before = open_descriptors();
  for (int count = 0; count < 20; ++count) {
    alignas(8) std::byte copy[128];
    std::memcpy(copy, handle, sizeof copy);
    void* send = nullptr;
    EXPECT_EQ(net.connect(0, copy, &send, nullptr), 0);
  }
  EXPECT_GT(open_descriptors(), before);
  // Whatever a host calls next looks after them.
  EXPECT_TRUE(until([&] {
    void* another = nullptr;
    alignas(8) std::byte its_handle[128];
    EXPECT_EQ(net.listen(0, its_handle, &another), 0);
    EXPECT_EQ(net.close_listen(another), 0);
    return open_descriptors() == before;
  }));
  EXPECT_EQ(net.close_listen(listener), 0);
}

TEST(Contract, SeveralAcceptsFromOneListener) {
  const auto plugin = open_plugin();
  Net& net = plugin->net();
  alignas(8) std::byte handle[128];
  void* listener = nullptr;
  ASSERT_EQ(net.listen(0, handle, &listener), 0);
  std::vector<void*> sends, receives;
  for (int count = 0; count < 3; ++count) {
    alignas(8) std::byte copy[128];
    std::memcpy(copy, handle, sizeof copy);
    void* send = nullptr;
    void* receive = nullptr;
    ASSERT_TRUE(until([&] {
      const int connected = send == nullptr ? net.connect(0, copy, &send, nullptr) : 0;
      const int accepted = receive == nullptr ? net.accept(listener, &receive, nullptr) : 0;
      EXPECT_EQ(connected, 0);
      EXPECT_EQ(accepted, 0);
      return send != nullptr && receive != nullptr;
    }));
    sends.push_back(send);
    receives.push_back(receive);
  }
  for (void* comm : sends) EXPECT_EQ(net.close_send(comm), 0);
  for (void* comm : receives) EXPECT_EQ(net.close_recv(comm), 0);
  EXPECT_EQ(net.close_listen(listener), 0);
}

TEST(Contract, AStrangersHandleIsRefused) {
  const auto plugin = open_plugin();
  alignas(8) std::byte handle[128] = {};
  void* comm = nullptr;
  EXPECT_EQ(plugin->net().connect(0, handle, &comm, nullptr), 4);
  EXPECT_EQ(comm, nullptr);
}

}  // namespace
}  // namespace softnet::testing
