// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// What a channel makes of a peer that says what it should not, or nothing. What channels do for each other is
// the conformance suite's to test.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "p2p/log.h"
#include "support/devices.h"
#include "transport/nccl_net/memory.h"
#include "transport/nccl_net/nccl_net.h"
#include "transport/nccl_net/protocol.h"

namespace p2p::nccl_net::channel_test {
namespace {

using Clock = std::chrono::steady_clock;

struct Link : ControlLink {
  std::deque<Bytes> sent;
  void send(std::span<const std::byte> message) override {
    sent.emplace_back(message.begin(), message.end());
  }
};

Bytes packed(const Message& message) {
  Bytes bytes{kPackedMessages};
  pack(bytes, message);
  return bytes;
}

Options options() {
  Options set;
  set.nccl_net.plugin = SOFTNET_PATH;
  set.keepalive = std::chrono::milliseconds(200);
  set.hung = std::chrono::milliseconds(1000);
  return set;
}

/// One of two channels of this process, driven by the test's own thread.
struct End {
  std::unique_ptr<Transport> transport;
  Link link;
  std::unique_ptr<Channel> channel;
  std::vector<Completion> completions;

  void open(Role role, const Options& set = options()) {
    transport = make(set, test_devices(set));
    ASSERT_TRUE(transport->probe()) << transport->probe().error().message;
    ChannelSetup setup{.role = role, .rail = transport->rails({}).front(), .control = &link};
    setup.secret.fill(std::byte{7});
    auto opened = transport->open_channel(setup);
    ASSERT_TRUE(opened) << opened.error().message;
    channel = std::move(*opened);
  }
};

class NetChannelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ::setenv("SOFTNET_INTERFACES", "lo", 1);
    left_.open(Role::kConnector, set());
    right_.open(Role::kAcceptor, set());
    ASSERT_TRUE(left_.channel->connect(right_.channel->address()));
    ASSERT_TRUE(right_.channel->connect(left_.channel->address()));
    ASSERT_TRUE(step_until([&] {
      return left_.channel->state() == ChannelState::kReady &&
             right_.channel->state() == ChannelState::kReady;
    }));
  }

  virtual Options set() const { return options(); }

  static void deliver(End& from, End& to) {
    for (; !from.link.sent.empty(); from.link.sent.pop_front()) {
      static_cast<void>(to.channel->on_control(from.link.sent.front()));
    }
  }

  template <class Condition>
  bool step_until(Condition&& condition) {
    const auto end = Clock::now() + std::chrono::seconds(30);
    while (!condition() && Clock::now() < end) {
      deliver(left_, right_);
      deliver(right_, left_);
      left_.channel->progress(left_.completions);
      right_.channel->progress(right_.completions);
    }
    return condition();
  }

  /// The message ends the left channel as a breach of the protocol.
  void expect_breach(const Bytes& message) {
    const Status taken = left_.channel->on_control(message);
    ASSERT_FALSE(taken);
    EXPECT_EQ(taken.error().code, ErrorCode::kProtocol) << taken.error().message;
    EXPECT_TRUE(step_until([&] { return left_.channel->state() == ChannelState::kFailed; }));
    EXPECT_EQ(left_.channel->error().code, ErrorCode::kProtocol);
  }

  End left_, right_;
};

TEST(NetTransportTest, SaysInTheLogWhyAPluginThatWasAskedForIsNotUsed) {
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel level, std::string_view line) {
    if (level >= LogLevel::kWarning) lines.emplace_back(line);
  });
  Options set;
  set.nccl_net.plugin = "/nowhere/libnccl-net.so";
  const auto transport = make(set, test_devices(set));
  EXPECT_FALSE(transport->probe());
  EXPECT_FALSE(transport->probe());
  set_log_sink(nullptr);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_NE(lines[0].find("/nowhere/libnccl-net.so"), std::string::npos) << lines[0];
}

TEST(NetTransportTest, APluginOfWhoseHandlesNothingIsKnownNeedsAKeyOrCertificates) {
  Options set;
  set.nccl_net.plugin = FAKE_PATH;
  const Status refused = make(set, test_devices(set))->probe();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(refused.error().message.find("Fake"), std::string::npos) << refused.error().message;
  EXPECT_NE(refused.error().message.find("UCCL_P2P_KEY_FILE"), std::string::npos);
  set.key_file = "/a/key/file";
  const Status used = make(set, test_devices(set))->probe();
  EXPECT_TRUE(used) << used.error().message;
  set.key_file.clear();
  set.tls_ca = "/a/ca/file";
  const Status trusted = make(set, test_devices(set))->probe();
  EXPECT_TRUE(trusted) << trusted.error().message;
}

// The plugin itself says "not yet" for ever: nobody takes the connection, or makes one.
TEST(NetConnect, APeerThatDoesNothingIsGivenUp) {
  ::setenv("SOFTNET_INTERFACES", "lo", 1);
  Options set = options();
  set.connect_timeout = std::chrono::milliseconds(200);
  End left, right;
  left.open(Role::kConnector, set);
  right.open(Role::kAcceptor);
  ASSERT_TRUE(left.channel->connect(right.channel->address()));
  const auto end = Clock::now() + std::chrono::seconds(30);
  while (left.channel->state() == ChannelState::kConnecting && Clock::now() < end) {
    left.channel->progress(left.completions);
  }
  ASSERT_EQ(left.channel->state(), ChannelState::kFailed);
  EXPECT_EQ(left.channel->error().code, ErrorCode::kTimedOut);
  EXPECT_NE(left.channel->error().message.find("not ready after 200 ms"), std::string::npos)
      << left.channel->error().message;
}

TEST(NetConnect, AnAddressThatIsNoneIsRefused) {
  ::setenv("SOFTNET_INTERFACES", "lo", 1);
  End left;
  left.open(Role::kConnector);
  Bytes address = left.channel->address();
  EXPECT_FALSE(left.channel->connect(std::span(address).first(address.size() - 1)));
  address[8] = address[9] = address[10] = address[11] = std::byte{};  // chunks of nothing
  EXPECT_FALSE(left.channel->connect(address));
  address[0] ^= std::byte{1};
  EXPECT_FALSE(left.channel->connect(address));
}

TEST_F(NetChannelTest, NoiseIsABreach) { expect_breach(Bytes(9, std::byte{0xee})); }

TEST_F(NetChannelTest, AChunkOutOfSequenceIsABreach) {
  expect_breach(packed(Chunk{.sequence = 1, .batch = 1, .last = true}));
}

TEST_F(NetChannelTest, AnAnswerThatNobodyAskedForIsABreach) {
  expect_breach(packed(Chunk{.batch = 1, .response = true, .last = true, .size = 10}));
}

TEST_F(NetChannelTest, TheEndOfAnUnknownWriteIsABreach) { expect_breach(packed(Done{5, false, {}})); }

TEST_F(NetChannelTest, CancellingAnUnknownWriteIsABreach) { expect_breach(packed(Cancel{5, false})); }

TEST_F(NetChannelTest, AReadOfNothingIsABreach) { expect_breach(packed(ReadRequest{1, {}})); }

TEST_F(NetChannelTest, MoreBytesThanAReadWantsAreABreach) {
  std::array<std::byte, 100> memory{};
  const RegionInfo info{.id = RegionId{1}, .base = memory.data(), .size = memory.size()};
  const auto registration = left_.transport->register_memory(info);
  const auto key = left_.transport->import_region(info, {});
  ASSERT_TRUE(registration && key);
  const std::array segments{Segment{memory.data(), 0x1000, memory.size(), registration->get(), key->get()}};
  ASSERT_TRUE(left_.channel->post(
      {.id = BatchId{1}, .operation = Operation::kRead, .segments = segments, .bytes = memory.size()}));
  expect_breach(packed(Chunk{.batch = 1, .response = true, .last = true, .size = 101}));
  left_.channel->progress(left_.completions);
  ASSERT_EQ(left_.completions.size(), 1U);
  EXPECT_FALSE(left_.completions[0].status);
}

// What control says has another path, and what a plugin takes may wait here.
TEST_F(NetChannelTest, TellsOfThePeersHostByWhatComes) {
  std::vector<std::byte> here(1000), there(here.size());
  const RegionInfo source{.id = RegionId{1}, .base = here.data(), .size = here.size()};
  const RegionInfo target{.id = RegionId{1}, .base = there.data(), .size = there.size()};
  const auto registration = left_.transport->register_memory(source);
  const auto registered = right_.transport->register_memory(target);
  const auto key = left_.transport->import_region(target, {});
  ASSERT_TRUE(registration && registered && key);
  const std::array segments{Segment{here.data(), reinterpret_cast<std::uint64_t>(there.data()), here.size(),
                                    registration->get(), key->get()}};
  const auto carry = [&](Operation operation) {
    left_.completions.clear();
    const Batch batch{.id = BatchId{1}, .operation = operation, .segments = segments, .bytes = here.size()};
    ASSERT_TRUE(left_.channel->post(batch));
    ASSERT_TRUE(step_until([&] { return !left_.completions.empty(); }));
  };
  constexpr std::chrono::minutes kEver{60};
  const auto end = Clock::now() + std::chrono::milliseconds(200);
  ASSERT_TRUE(step_until([&] { return Clock::now() >= end; }));
  EXPECT_FALSE(left_.channel->heard_within(kEver) || right_.channel->heard_within(kEver));
  carry(Operation::kWrite);
  EXPECT_TRUE(right_.channel->heard_within(kEver));
  EXPECT_FALSE(left_.channel->heard_within(kEver));
  carry(Operation::kRead);
  EXPECT_TRUE(left_.channel->heard_within(kEver));
  right_.transport->revoke_memory(**registered);
  ASSERT_TRUE(step_until([&] { return !left_.channel->heard_within(std::chrono::milliseconds(50)); }));
}

class OneOfManyChannelsTest : public NetChannelTest {
 protected:
  Options set() const override {
    Options set = options();
    set.nccl_net.channels = 16;
    return set;
  }
};

// Else the first to look would take all of a transfer, and the others be idle at its end.
TEST_F(OneOfManyChannelsTest, LeavesToOthersWhatItCannotMoveSoon) {
  std::vector<std::byte> memory(std::size_t{4} << 20);
  const RegionInfo here{.id = RegionId{1}, .base = memory.data(), .size = memory.size()};
  const auto registration = left_.transport->register_memory(here);
  const auto there = right_.transport->register_memory(here);
  const auto key = left_.transport->import_region(here, {});
  ASSERT_TRUE(registration && there && key);
  const auto address = reinterpret_cast<std::uint64_t>(memory.data());
  const std::array segments{Segment{memory.data(), address, memory.size(), registration->get(), key->get()}};
  for (const Operation operation : {Operation::kRead, Operation::kWrite}) {
    left_.completions.clear();
    const Batch first{.id = BatchId{1}, .operation = operation, .segments = segments, .bytes = memory.size()};
    const Batch second{
        .id = BatchId{2}, .operation = operation, .segments = segments, .bytes = memory.size()};
    ASSERT_TRUE(left_.channel->post(first));
    EXPECT_FALSE(left_.channel->post(second));
    ASSERT_TRUE(step_until([&] { return !left_.completions.empty(); }));
    EXPECT_TRUE(left_.completions.front().status) << left_.completions.front().status.error().message;
  }
  right_.transport->revoke_memory(**there);
  left_.transport->revoke_memory(**registration);
}

TEST_F(NetChannelTest, AnnouncementsWithoutEndAreABreach) {
  Status taken;
  std::uint64_t sequence = 0;
  for (; taken && sequence < 100000; ++sequence) {
    taken = left_.channel->on_control(packed(Chunk{.sequence = sequence, .batch = 1}));
  }
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().code, ErrorCode::kProtocol);
}

TEST_F(NetChannelTest, AWriteToAnUnknownRegionIsAnsweredAndTheChannelWorksOn) {
  std::array<std::byte, 100> memory{};
  const RegionInfo info{.id = RegionId{1}, .base = memory.data(), .size = memory.size()};
  const auto registration = left_.transport->register_memory(info);
  const auto key = left_.transport->import_region({.id = RegionId{99}}, {});
  ASSERT_TRUE(registration && key);
  const std::array segments{Segment{memory.data(), 0x1000, memory.size(), registration->get(), key->get()}};
  for (const Operation operation : {Operation::kWrite, Operation::kRead}) {
    left_.completions.clear();
    ASSERT_TRUE(left_.channel->post(
        {.id = BatchId{1}, .operation = operation, .segments = segments, .bytes = memory.size()}));
    ASSERT_TRUE(step_until([&] { return !left_.completions.empty(); }));
    ASSERT_FALSE(left_.completions[0].status);
    EXPECT_EQ(left_.completions[0].status.error().code, ErrorCode::kNotFound);
  }
  EXPECT_EQ(left_.channel->state(), ChannelState::kReady);
  EXPECT_EQ(right_.channel->state(), ChannelState::kReady);
}

/// Memory that counts as freed once it was looked at a number of times.
class FreedMemory : public NetRegistration {
 public:
  FreedMemory(const RegionInfo& info, int looks) : NetRegistration(info), looks_(looks) {}
  Status check_alive() const override {
    if (looks_-- > 0) return {};
    return tl::unexpected<Error>({ErrorCode::kNotFound, "its memory was freed"});
  }

 private:
  mutable int looks_;
};

TEST_F(NetChannelTest, MemoryThatWasFreedHereIsLeftAloneAndTheChannelWorksOn) {
  std::vector<std::byte> there(NcclNetOptions::kHostChunkBytes * 6, std::byte{2});
  RegionInfo info{.id = RegionId{1}, .base = there.data(), .size = there.size()};
  const auto target = right_.transport->register_memory(info);
  const auto key = left_.transport->import_region(info, {});
  ASSERT_TRUE(target && key);
  std::uint32_t region = 1;
  const auto outcome = [&](Operation operation, std::vector<std::byte>& memory, int looks) -> Status {
    const FreedMemory registration({.id = RegionId{++region}, .base = memory.data(), .size = memory.size()},
                                   looks);
    const std::array segments{Segment{memory.data(), reinterpret_cast<std::uint64_t>(there.data()),
                                      memory.size(), &registration, key->get()}};
    left_.completions.clear();
    EXPECT_TRUE(left_.channel->post(
        {.id = BatchId{1}, .operation = operation, .segments = segments, .bytes = memory.size()}));
    if (!step_until([&] { return !left_.completions.empty(); })) {
      return tl::unexpected<Error>({ErrorCode::kTimedOut, "no completion"});
    }
    return left_.completions.front().status;
  };
  const auto expect_refused = [](const Status& status) {
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().message, "its memory was freed");
  };
  std::vector<std::byte> small(100, std::byte{1});
  std::vector<std::byte> large(there.size(), std::byte{1});
  expect_refused(outcome(Operation::kWrite, small, 0));
  EXPECT_EQ(there.front(), std::byte{2});
  expect_refused(outcome(Operation::kWrite, large, 2));  // when some of it is on its way
  EXPECT_EQ(there.back(), std::byte{2});
  expect_refused(outcome(Operation::kRead, small, 0));
  EXPECT_EQ(small, std::vector<std::byte>(100, std::byte{1}));
  EXPECT_TRUE(outcome(Operation::kWrite, large, 1000));
  EXPECT_EQ(there, large);
  right_.transport->revoke_memory(**target);
}

class LostBatchTest : public NetChannelTest {
 protected:
  /// A write of `here` that is under way when the left channel is lost.
  void lose_a_write() {
    const RegionInfo source{.id = RegionId{1}, .base = here_.data(), .size = here_.size()};
    const RegionInfo target{.id = RegionId{1}, .base = there_.data(), .size = there_.size()};
    registration_ = left_.transport->register_memory(source).value();
    target_ = right_.transport->register_memory(target).value();
    key_ = left_.transport->import_region(target, {}).value();
    const std::array segments{Segment{here_.data(), reinterpret_cast<std::uint64_t>(there_.data()),
                                      here_.size(), registration_.get(), key_.get()}};
    ASSERT_TRUE(left_.channel->post({.id = BatchId{1}, .segments = segments, .bytes = here_.size()}));
    left_.channel->progress(left_.completions);
    // What was announced arrives, its bytes are on their way.
    deliver(left_, right_);
    ASSERT_FALSE(left_.channel->on_control(Bytes(9, std::byte{0xee})));
  }

  void progress(End& end) {
    for (int i = 0; i != 200; ++i) end.channel->progress(end.completions);
  }

  std::vector<std::byte> here_ = std::vector<std::byte>(std::size_t{256} << 10, std::byte{7});
  std::vector<std::byte> there_ = std::vector<std::byte>(here_.size());
  std::shared_ptr<Registration> registration_, target_;
  std::unique_ptr<RemoteKey> key_;
};

// The engine sends a batch of a lost channel again over another one. Its bytes may still lie in the peer's
// socket and would land after that, and after whatever was written there since.
TEST_F(LostBatchTest, EndsOnceNothingOfItCanLandAnyMore) {
  lose_a_write();
  progress(left_);
  EXPECT_TRUE(left_.completions.empty());
  ASSERT_EQ(left_.link.sent.size(), 1U) << "that its comms are closed";

  deliver(left_, right_);
  progress(right_);
  EXPECT_EQ(right_.channel->state(), ChannelState::kFailed);
  std::ranges::fill(there_, std::byte{9});
  deliver(right_, left_);
  left_.channel->progress(left_.completions);
  ASSERT_EQ(left_.completions.size(), 1U);
  EXPECT_EQ(left_.completions[0].status.error().code, ErrorCode::kPeerGone);
  EXPECT_EQ(left_.channel->state(), ChannelState::kFailed);
  progress(right_);
  EXPECT_EQ(there_, std::vector<std::byte>(there_.size(), std::byte{9}));
  right_.transport->revoke_memory(*target_);
}

TEST_F(LostBatchTest, EndsWithThePeersChannel) {
  lose_a_write();
  left_.channel->abandon(BatchId{1});
  progress(left_);
  EXPECT_TRUE(left_.completions.empty());
  right_.channel.reset();
  for (; !right_.link.sent.empty(); right_.link.sent.pop_front()) {
    static_cast<void>(left_.channel->on_control(right_.link.sent.front()));
  }
  left_.channel->progress(left_.completions);
  ASSERT_EQ(left_.completions.size(), 1U);
  EXPECT_FALSE(left_.completions[0].status);
}

// The peer's session would take a message to a channel that it does not have for a breach.
TEST(NetConnect, ChannelsThatNeverKnewOfEachOtherSayNothing) {
  ::setenv("SOFTNET_INTERFACES", "lo", 1);
  End left;
  left.open(Role::kConnector);
  left.channel.reset();
  EXPECT_TRUE(left.link.sent.empty());
}

TEST_F(NetChannelTest, ASilentPeerIsGone) {
  const auto end = Clock::now() + std::chrono::seconds(30);
  while (left_.channel->state() == ChannelState::kReady && Clock::now() < end) {
    left_.channel->progress(left_.completions);
  }
  ASSERT_EQ(left_.channel->state(), ChannelState::kFailed);
  EXPECT_EQ(left_.channel->error().code, ErrorCode::kPeerGone);
  EXPECT_NE(left_.channel->error().message.find("heard of"), std::string::npos);
}

TEST_F(NetChannelTest, AnIdleChannelLives) {
  const auto end = Clock::now() + std::chrono::milliseconds(1500);
  EXPECT_TRUE(step_until([&] { return Clock::now() >= end; }));
  EXPECT_EQ(left_.channel->state(), ChannelState::kReady);
  EXPECT_EQ(right_.channel->state(), ChannelState::kReady);
}

}  // namespace
}  // namespace p2p::nccl_net::channel_test
