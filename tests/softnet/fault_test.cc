// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Each case runs in a process of its own with the SOFTNET_FAULT that it names (CMakeLists.txt).
#include "softnet/testing.h"
#include "support/process.h"

namespace softnet::testing {
namespace {

/// Sends and receives 4 MiB; what the receiving end says of it.
struct Outcome {
  bool send_failed = false;
  bool receive_failed = false;
  bool arrived = false;
};

Outcome run(Pair& pair, std::chrono::milliseconds patience) {
  Memory from(4 << 20, 2), to(4 << 20);
  const MemoryHandle source = pair.source(from), target = pair.target(to);
  EXPECT_TRUE(*pair.sends->post(from.data, from.size, source));
  EXPECT_TRUE(*pair.receives->post(to.data, to.size, target));
  Outcome outcome;
  const auto end = Clock::now() + patience;
  while (Clock::now() < end && !outcome.receive_failed && !outcome.arrived) {
    if (!outcome.send_failed) outcome.send_failed = !pair.sends->poll();
    auto arrival = pair.receives->poll();
    outcome.receive_failed = !arrival;
    outcome.arrived = arrival && arrival->has_value();
  }
  if (!outcome.send_failed) outcome.send_failed = !pair.sends->poll();
  return outcome;
}

TEST(Fault, InitFails) {
  const auto plugin = Plugin::open(SOFTNET_PATH);
  ASSERT_FALSE(plugin);
  EXPECT_NE(plugin.error().message.find("internal error (3)"), std::string::npos);
}

TEST(Fault, NoDevices) {
  const auto devices = open_plugin()->devices();
  ASSERT_FALSE(devices);
  EXPECT_EQ(devices.error().code, ErrorCode::kUnavailable);
}

TEST(Fault, NullProperties) {
  const auto device = open_plugin()->device(0);
  ASSERT_TRUE(device);
  EXPECT_EQ(device->label(), "device 0");
  EXPECT_EQ(device->numa_node, -1);
  EXPECT_TRUE(Pair::open(open_plugin()));
}

TEST(Fault, ConnectionBreaksInTheMiddleOfData) {
  auto pair = Pair::open(open_plugin());
  ASSERT_TRUE(pair);
  const Outcome outcome = run(*pair, kPatience);
  EXPECT_TRUE(outcome.receive_failed);
  EXPECT_TRUE(outcome.send_failed);
  EXPECT_FALSE(outcome.arrived);
}

TEST(Fault, SilenceInTheMiddleOfDataIsNotAnError) {
  auto pair = Pair::open(open_plugin());
  ASSERT_TRUE(pair);
  const Outcome outcome = run(*pair, std::chrono::milliseconds(300));
  EXPECT_FALSE(outcome.receive_failed) << "hosts must have a deadline of their own";
  EXPECT_FALSE(outcome.arrived);
}

TEST(Fault, ConnectThatNeverCompletesEndsInTime) {
  const auto plugin = open_plugin();
  const auto device = plugin->device(0);
  auto listener = Listener::open(plugin, *device);
  Connector connector(plugin, *device, listener->handle());
  Result<std::optional<SendComm>> polled{std::nullopt};
  EXPECT_TRUE(until([&] { return !(polled = connector.poll()); }));
  ASSERT_FALSE(polled);
  EXPECT_EQ(polled.error().code, ErrorCode::kPeerGone);
  EXPECT_FALSE(connector.poll()) << "it is over";
}

TEST(Fault, AnAnswerThatIsThereCountsForWhoComesLate) {
  const auto plugin = open_plugin();
  const auto device = plugin->device(0);
  auto listener = Listener::open(plugin, *device);
  ASSERT_TRUE(listener);
  Connector connector(plugin, *device, listener->handle());
  const auto over = Clock::now() + std::chrono::milliseconds(1100);  // the attempt's time, and more
  std::optional<RecvComm> accepted;
  ASSERT_TRUE(until([&] {
    if (!connector.poll()) return false;
    accepted = listener->poll().value_or(std::nullopt);
    return accepted.has_value();
  }));
  while (Clock::now() < over) {  // the caller stands still
  }
  const auto late = connector.poll();
  ASSERT_TRUE(late) << late.error().message;
  EXPECT_TRUE(late->has_value());
}

/// The peer is another process, killed without a word.
void kill_peer(std::size_t bytes_before) {
  const auto plugin = open_plugin();
  const auto device = plugin->device(0);
  auto listener = Listener::open(plugin, *device);
  ASSERT_TRUE(listener);
  auto child = p2p::testing::Process::forked([&]() -> int {
    Connector connector(plugin, *device, listener->handle());
    std::optional<SendComm> comm;
    until([&] { return (comm = connector.poll().value_or(std::nullopt)).has_value(); });
    SendWindow sends(*comm);
    Memory from(4 << 20, 1);
    const auto source = register_with(sends.comm(), from.data, from.size, abi::kPointerHost);
    if (bytes_before != 0) (void)sends.post(from.data, from.size, *source);
    while (true) (void)sends.poll();  // ends by the signal, in the middle of data or idle
  });
  ASSERT_TRUE(child);
  std::optional<RecvComm> comm;
  ASSERT_TRUE(until([&] { return (comm = listener->poll().value_or(std::nullopt)).has_value(); }));
  ReceiveWindow receives(*comm);
  Memory to(4 << 20), more(4 << 20);
  const auto target = register_with(comm->comm, to.data, to.size, abi::kPointerHost);
  const auto another = register_with(comm->comm, more.data, more.size, abi::kPointerHost);
  // The child sends one message at most, so that one of these receives must fail.
  ASSERT_TRUE(*receives.post(to.data, to.size, *target));
  ASSERT_TRUE(*receives.post(more.data, more.size, *another));
  EXPECT_TRUE(receives.poll());
  child->kill_now();
  ErrorCode code{};
  EXPECT_TRUE(until([&] {
    auto arrival = receives.poll();
    if (!arrival) code = arrival.error().code;
    return !arrival;
  }));
  EXPECT_EQ(code, ErrorCode::kPeerGone);
}

TEST(Fault, PeerKilledIdle) { kill_peer(0); }
TEST(Fault, PeerKilledInTheMiddleOfData) { kill_peer(4 << 20); }

}  // namespace
}  // namespace softnet::testing
