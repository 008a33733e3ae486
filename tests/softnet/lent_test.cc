// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Sends whose memory the kernel reads when the peer does; run with SOFTNET_STAGE=1 and a small pool.
#include <dlfcn.h>

#include <csignal>

#include "drivers/nccl_net/abi/v7.h"
#include "softnet/testing.h"

namespace softnet::testing {
namespace {

constexpr std::size_t kSize = 1 << 20;
constexpr int kSomeTurns = 200;

/// One message that is sent and not yet received.
struct Message {
  Memory from, to;
  std::optional<MemoryHandle> source, target;  // hold their comms open

  Message(Pair& pair, unsigned seed)
      : from(kSize, seed), to(kSize), source(pair.source(from)), target(pair.target(to)) {}

  bool send(Pair& pair) { return pair.sends->post(from.data, kSize, *source).value_or(false); }

  /// Receives it and compares its bytes.
  bool receive(Pair& pair) {
    if (!pair.receives->post(to.data, kSize, *target).value_or(false)) return false;
    bool came = false;
    const bool in_time = until([&] {
      if (pair.sends) static_cast<void>(pair.sends->poll());
      auto arrival = pair.receives->poll();
      if (arrival && *arrival) came = static_cast<bool>(pair.finish(**arrival, to.data, kSize));
      return !arrival || came;
    });
    return in_time && came && std::memcmp(from.data, to.data, kSize) == 0;
  }
};

TEST(Lent, ASendIsDoneWhenItHasBeenRead) {
  auto pair = Pair::open(open_plugin());
  ASSERT_TRUE(pair);
  Message message(*pair, 3);
  ASSERT_TRUE(message.send(*pair));
  for (int turn = 0; turn < kSomeTurns; ++turn) {
    const auto polled = pair->sends->poll();
    ASSERT_TRUE(polled);
    ASSERT_FALSE(*polled) << "its pages are still to be read";
  }
  EXPECT_TRUE(message.receive(*pair));
  EXPECT_TRUE(until([&] { return pair->sends->empty() || pair->sends->poll().value_or(false); }));
}

TEST(Lent, BytesOfAClosedCommStayAsTheyWere) {
  const auto plugin = open_plugin();
  auto closed = Pair::open(plugin);
  auto other = Pair::open(plugin);
  ASSERT_TRUE(closed && other);
  Message first(*closed, 5);
  ASSERT_TRUE(first.send(*closed));
  for (int turn = 0; turn < kSomeTurns; ++turn) ASSERT_TRUE(closed->sends->poll());
  first.source.reset();
  closed->sends.reset();
  // Others use all of the pool meanwhile.
  for (unsigned round = 0; round < 8; ++round) {
    Message message(*other, 100 + round);
    ASSERT_TRUE(message.send(*other));
    ASSERT_TRUE(message.receive(*other)) << "round " << round;
  }
  EXPECT_TRUE(first.receive(*closed)) << "what was sent before the comm was closed";
}

TEST(Lent, PagesThatNobodyReadsAnyMoreAreUsedAgain) {
  const auto plugin = open_plugin();
  for (unsigned round = 0; round < 12; ++round) {
    auto pair = Pair::open(plugin);
    ASSERT_TRUE(pair);
    Message message(*pair, 7 + round);
    ASSERT_TRUE(message.send(*pair));
    for (int turn = 0; turn < kSomeTurns; ++turn) ASSERT_TRUE(pair->sends->poll());
    // Unread at either end; every other time the peer is the first to close.
    if (round % 2 == 0) pair->receives.reset();
  }
  auto pair = Pair::open(plugin);
  ASSERT_TRUE(pair);
  Message message(*pair, 99);
  ASSERT_TRUE(message.send(*pair));
  EXPECT_TRUE(message.receive(*pair)) << "the pool has room for three messages";
}

/// As hosts call it that do not look after signals: not by way of the driver.
TEST(Lent, APeerThatHasGoneRaisesNoSignal) {
  void* const library = ::dlopen(SOFTNET_PATH, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << ::dlerror();
  const auto* net = static_cast<const abi::v7::Table*>(::dlsym(library, "ncclNetPlugin_v7"));
  ASSERT_TRUE(open_plugin()) << "which initialises it, once in a process";
  alignas(8) std::byte handle[128];
  void *listener = nullptr, *send = nullptr, *receive = nullptr, *registered = nullptr;
  ASSERT_EQ(net->listen(0, handle, &listener), 0);
  ASSERT_TRUE(until([&] {
    if (send == nullptr) net->connect(0, handle, &send, nullptr);
    if (receive == nullptr) net->accept(listener, &receive, nullptr);
    return send != nullptr && receive != nullptr;
  }));
  Memory from(kSize, 1);
  ASSERT_EQ(net->reg_mr(send, from.data, static_cast<int>(from.size), abi::kPointerHost, &registered), 0);
  net->close_recv(receive);
  void* request = nullptr;
  int done = 0, code = 0;
  // The first that is sent is answered by a reset, and only then a send is one to nobody.
  EXPECT_TRUE(until([&] {
    if (request == nullptr || done != 0) {
      code = net->isend(send, from.data, static_cast<int>(from.size), 0, registered, &request);
    }
    if (code == 0) code = net->test(request, &done, nullptr);
    return code != 0;
  }));
  sigset_t pending;
  ::sigpending(&pending);
  EXPECT_EQ(sigismember(&pending, SIGPIPE), 0);
  net->dereg_mr(send, registered);
  net->close_send(send);
  net->close_listen(listener);
}

}  // namespace
}  // namespace softnet::testing
