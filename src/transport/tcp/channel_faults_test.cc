// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <vector>

#include "drivers/socket/socket.h"
#include "support/bounds.h"
#include "support/lonely_host.h"
#include "support/memory.h"
#include "transport/tcp/channel_pair.h"
#include "transport/tcp/stream/descriptors.h"
#include "transport/tcp/stream/frame.h"

namespace p2p::tcp {
namespace {

using std::chrono::seconds;

class ChannelFaultsTest : public ::testing::TestWithParam<bool>, protected ChannelPair {
 protected:
  ChannelFaultsTest() { encrypt_ = GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Streams, ChannelFaultsTest, ::testing::Bool(), name_of_encryption);

/// Keeps what is said between the channels until the test hands it on.
struct HeldLink final : ControlLink {
  std::vector<Bytes> sent;
  void send(std::span<const std::byte> message) override {
    sent.emplace_back(message.begin(), message.end());
  }
};

/// Ends the stream that `channel` describes, on its side only.
void shut(const Channel& channel) {
  for (int fd = 3; fd != 1024; ++fd) {
    const Result<socket::Address> local = socket::local_address(fd);
    const Result<socket::Address> remote = socket::peer_address(fd);
    if (!local || !remote) continue;
    if (channel.describe().starts_with(fmt::format("{} -> {}", local->describe(), remote->describe()))) {
      EXPECT_EQ(::shutdown(fd, SHUT_RDWR), 0);
      return;
    }
  }
  ADD_FAILURE() << "no such stream";
}

// An acknowledgement that leaves while more is read is watched like all that leaves.
TEST_P(ChannelFaultsTest, APeerThatLeavesAnAcknowledgementUnansweredIsGone) {
  p2p::testing::LonelyHost::run([this] {
    ASSERT_TRUE(open());
    Memory here = left_.memory(kMiB, *right_.transport);
    Memory there = right_.memory(kMiB, *left_.transport);
    const std::vector<Segment> segments{whole(here, there)};
    ASSERT_TRUE(left_.channel->post(batch_of(1, segments)));
    // All of it lies at the right side once nothing more leaves.
    while (left_.progress()) {
    }
    ASSERT_TRUE(p2p::testing::LonelyHost::lose_routes());
    const auto deadline = Clock::now() + p2p::testing::kLimit;
    while (right_.channel->state() == ChannelState::kReady && Clock::now() < deadline) right_.progress();
    EXPECT_THAT(right_.channel->error().message, ::testing::HasSubstr("has not answered"));
  });
}

class CloseHandshakeTest : public ChannelFaultsTest {
 protected:
  void SetUp() override {
    left_control_ = &left_said_;
    right_control_ = &right_said_;
    ASSERT_TRUE(open());
  }
  void TearDown() override { left_.channel.reset(), right_.channel.reset(); }

  HeldLink left_said_;
  HeldLink right_said_;
};
INSTANTIATE_TEST_SUITE_P(Streams, CloseHandshakeTest, ::testing::Bool(), name_of_encryption);

// The engine sends a batch of a lost stream again over another one. Its frame may still lie in the peer's
// socket and would land after that, and after whatever was written there since.
TEST_P(CloseHandshakeTest, ALostBatchEndsOnceNothingOfItCanLandAnyMore) {
  Memory here = left_.memory(kMiB, *right_.transport);
  Memory there = right_.memory(kMiB, *left_.transport);
  here.fill(7);
  const std::vector<Segment> segments{whole(here, there)};
  ASSERT_TRUE(left_.channel->post(batch_of(1, segments)));
  shut(*left_.channel);
  const auto deadline = Clock::now() + seconds(20);
  while (left_said_.sent.empty() && Clock::now() < deadline) left_.progress();
  ASSERT_EQ(left_said_.sent.size(), 1U);
  for (int i = 0; i != 100; ++i) left_.progress();
  EXPECT_EQ(left_.find(1), nullptr) << left_.find(1)->status.error().message;
  EXPECT_FALSE(left_.channel->post(batch_of(2, segments)));

  ASSERT_TRUE(right_.channel->on_control(left_said_.sent[0]));
  for (int i = 0; i != 100; ++i) right_.progress();
  EXPECT_EQ(right_.channel->state(), ChannelState::kFailed);
  EXPECT_EQ(there.bytes, std::vector<std::byte>(there.bytes.size()));
  ASSERT_EQ(right_said_.sent.size(), 1U);

  ASSERT_TRUE(left_.channel->on_control(right_said_.sent[0]));
  left_.progress();
  ASSERT_NE(left_.find(1), nullptr);
  EXPECT_EQ(left_.find(1)->status.error().code, ErrorCode::kPeerGone);
  EXPECT_EQ(left_.channel->state(), ChannelState::kFailed);
}

TEST_P(CloseHandshakeTest, ACancelledBatchOfALostStreamEndsWithIt) {
  Memory here = left_.memory(kMiB, *right_.transport);
  Memory there = right_.memory(kMiB, *left_.transport);
  const std::vector<Segment> segments{whole(here, there)};
  ASSERT_TRUE(left_.channel->post(batch_of(1, segments)));
  ASSERT_TRUE(left_.channel->post(batch_of(2, segments, Operation::kRead)));
  shut(*left_.channel);
  const auto deadline = Clock::now() + seconds(20);
  while (left_said_.sent.empty() && Clock::now() < deadline) left_.progress();
  left_.channel->abandon(BatchId{1});
  left_.channel->abandon(BatchId{2});
  left_.progress();
  EXPECT_EQ(left_.find(1), nullptr);  // its bytes may still land
  ASSERT_NE(left_.find(2), nullptr);  // no answer can
  right_.channel.reset();
  ASSERT_EQ(right_said_.sent.size(), 1U);
  ASSERT_TRUE(left_.channel->on_control(right_said_.sent[0]));
  left_.progress();
  EXPECT_NE(left_.find(1), nullptr);
}

TEST_P(CloseHandshakeTest, NonsenseBetweenChannelsIsRefused) {
  for (const Bytes& message : {Bytes(), Bytes{std::byte{9}}, Bytes(600, std::byte{2})}) {
    const Status status = left_.channel->on_control(message);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kProtocol);
  }
  EXPECT_EQ(left_.channel->state(), ChannelState::kReady);
}

TEST_P(ChannelFaultsTest, RefusesBadKeysAndRangesAndGoesOn) {
  ASSERT_TRUE(open());
  Memory here = left_.memory(100'000, *right_.transport);
  Memory there = right_.memory(100'000, *left_.transport);
  here.fill(3);
  RegionInfo forged = there.registration->info();
  forged.key.fill(std::byte{99});
  const auto wrong_key = *left_.transport->import_region(forged, {});
  forged = there.registration->info();
  forged.id = RegionId{77};
  const auto unknown = *left_.transport->import_region(forged, {});

  std::uint64_t id = 0;
  for (const Operation operation : {Operation::kWrite, Operation::kRead}) {
    const auto expect = [&](const Segment& segment, ErrorCode code) {
      const std::vector<Segment> segments{segment};
      ASSERT_TRUE(left_.channel->post(batch_of(++id, segments, operation)));
      const Status status = outcome(left_, id);
      ASSERT_FALSE(status);
      EXPECT_EQ(status.error().code, code) << status.error().message;
    };
    const Segment good = whole(here, there);
    Segment bad = good;
    bad.key = wrong_key.get();
    expect(bad, ErrorCode::kPermissionDenied);
    bad.key = unknown.get();
    expect(bad, ErrorCode::kNotFound);
    bad = good;
    bad.remote += 1;
    expect(bad, ErrorCode::kOutOfRange);
    bad = good;
    bad.size = 1;
    bad.remote -= 1;
    expect(bad, ErrorCode::kOutOfRange);
  }
  EXPECT_EQ(there.bytes, std::vector<std::byte>(there.bytes.size()));
  const std::vector<Segment> segments{whole(here, there)};
  ASSERT_TRUE(left_.channel->post(batch_of(++id, segments)));
  ASSERT_TRUE(outcome(left_, id));
  EXPECT_EQ(here.bytes, there.bytes);
}

TEST_P(ChannelFaultsTest, RevokedInTheMiddleOfAWriteIsNotTouchedAgain) {
  ASSERT_TRUE(open());
  Memory here = left_.memory(32 * kMiB, *right_.transport);
  Memory there = right_.memory(32 * kMiB, *left_.transport);
  here.fill(5);
  const std::vector<Segment> segments{whole(here, there)};
  ASSERT_TRUE(left_.channel->post(batch_of(1, segments)));
  ASSERT_TRUE(
      drive([&] { return there.bytes[0] == here.bytes[0] && there.bytes[kMiB] == here.bytes[kMiB]; }));
  right_.transport->revoke_memory(*there.registration);
  const std::vector<std::byte> at_revocation = there.bytes;
  ASSERT_NE(at_revocation, here.bytes);
  const Status status = outcome(left_, 1);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kNotFound) << status.error().message;
  EXPECT_EQ(there.bytes, at_revocation);
}

TEST_P(ChannelFaultsTest, RevokedInTheMiddleOfAReadFailsIt) {
  ASSERT_TRUE(open());
  Memory here = left_.memory(32 * kMiB, *right_.transport);
  Memory there = right_.memory(32 * kMiB, *left_.transport);
  there.fill(6);
  const std::vector<Segment> segments{whole(here, there)};
  ASSERT_TRUE(left_.channel->post(batch_of(1, segments, Operation::kRead)));
  ASSERT_TRUE(
      drive([&] { return here.bytes[kMiB] == there.bytes[kMiB] && here.bytes[0] == there.bytes[0]; }));
  right_.transport->revoke_memory(*there.registration);
  const Status status = outcome(left_, 1);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kNotFound) << status.error().message;
  ASSERT_TRUE(left_.channel->post(batch_of(2, {})));
  EXPECT_TRUE(outcome(left_, 2));
}

TEST_P(ChannelFaultsTest, AbandonedWriteIsSentFromACopy) {
  ASSERT_TRUE(open());
  Memory here = left_.memory(32 * kMiB, *right_.transport);
  Memory there = right_.memory(32 * kMiB, *left_.transport);
  here.fill(9);
  const std::vector<std::byte> sent = here.bytes;
  const std::vector<Segment> segments{whole(here, there)};
  ASSERT_TRUE(left_.channel->post(batch_of(1, segments)));
  left_.channel->abandon(BatchId{1});
  std::fill(here.bytes.begin(), here.bytes.end(), std::byte{0});
  ASSERT_TRUE(outcome(left_, 1));
  EXPECT_EQ(there.bytes, sent);
}

TEST_P(ChannelFaultsTest, AbandonedWriteOfBadMemoryFails) {
  ASSERT_TRUE(open());
  Memory here = left_.memory(32 * kMiB, *right_.transport);
  Memory there = right_.memory(32 * kMiB, *left_.transport);
  const std::vector<Segment> segments{whole(here, there)};
  ASSERT_TRUE(left_.channel->post(batch_of(1, segments)));
  const auto end = reinterpret_cast<std::uintptr_t>(here.bytes.data() + here.bytes.size());
  auto* const page = reinterpret_cast<std::byte*>(end / 4096 * 4096 - 4096);
  testing::spoil({page, 4096}, testing::Bad::kProtected);
  left_.channel->abandon(BatchId{1});
  ASSERT_EQ(::mprotect(page, 4096, PROT_READ | PROT_WRITE), 0);
  const Status status = outcome(left_, 1);
  ASSERT_FALSE(status) << "zeros were sent in its place";
  EXPECT_THAT(status.error().message, ::testing::EndsWith("Bad address"));
}

TEST_P(ChannelFaultsTest, AbandonedWriteThatWaitsNeverLeaves) {
  ASSERT_TRUE(open());
  Memory here = left_.memory(kMiB, *right_.transport);
  Memory there = right_.memory(kMiB, *left_.transport);
  Memory untouched = right_.memory(kMiB, *left_.transport);
  here.fill(2);
  const std::vector<Segment> segments{whole(here, there)};
  const std::vector<Segment> late{whole(here, untouched)};
  std::uint64_t posted = 0;
  // The last of those that fit waits for the socket.
  while (posted != 1000 && left_.channel->post(batch_of(posted + 1, posted < 2 ? segments : late))) ++posted;
  left_.channel->abandon(static_cast<BatchId>(posted));
  EXPECT_TRUE(left_.channel->busy());
  ASSERT_TRUE(left_.progress());
  ASSERT_NE(left_.find(posted), nullptr);
  EXPECT_EQ(left_.find(posted)->status.error().code, ErrorCode::kCancelled);
  ASSERT_TRUE(drive([&] { return left_.completions.size() == posted; }));
  ASSERT_TRUE(left_.channel->post(batch_of(5000, segments)));
  EXPECT_TRUE(outcome(left_, 5000));
}

TEST_P(ChannelFaultsTest, AbandonedReadIsNotTouchedAgain) {
  ASSERT_TRUE(open());
  Memory here = left_.memory(32 * kMiB, *right_.transport);
  Memory there = right_.memory(32 * kMiB, *left_.transport);
  there.fill(7);
  const std::vector<Segment> segments{whole(here, there)};
  ASSERT_TRUE(left_.channel->post(batch_of(1, segments, Operation::kRead)));
  ASSERT_TRUE(
      drive([&] { return here.bytes[kMiB] == there.bytes[kMiB] && here.bytes[0] == there.bytes[0]; }));
  left_.channel->abandon(BatchId{1});
  std::fill(here.bytes.begin(), here.bytes.end(), std::byte{1});
  ASSERT_TRUE(left_.progress());
  ASSERT_NE(left_.find(1), nullptr);
  EXPECT_EQ(left_.find(1)->status.error().code, ErrorCode::kCancelled);
  // There is room for the next once the rest of the answer has come and gone.
  ASSERT_TRUE(drive([&] { return left_.channel->post(batch_of(2, {}, Operation::kRead)); }));
  ASSERT_TRUE(outcome(left_, 2));
  EXPECT_EQ(here.bytes, std::vector<std::byte>(here.bytes.size(), std::byte{1}));
  ASSERT_TRUE(left_.channel->post(batch_of(3, segments, Operation::kRead)));
  ASSERT_TRUE(outcome(left_, 3));
  EXPECT_EQ(here.bytes, there.bytes);
  EXPECT_EQ(std::count_if(left_.completions.begin(), left_.completions.end(),
                          [](const Completion& completion) { return completion.id == BatchId{1}; }),
            1);
}

TEST_P(ChannelFaultsTest, PeerThatClosesInTheMiddleFailsEverything) {
  ASSERT_TRUE(open());
  Memory here = left_.memory(32 * kMiB, *right_.transport);
  Memory there = right_.memory(32 * kMiB, *left_.transport);
  const std::vector<Segment> segments{whole(here, there)};
  const std::vector<Segment> small{
      {here.bytes.data(), there.address(), 10, here.registration.get(), there.key.get()}};
  ASSERT_TRUE(left_.channel->post(batch_of(1, segments)));
  ASSERT_TRUE(left_.channel->post(batch_of(2, small, Operation::kRead)));
  right_.progress();
  right_.channel.reset();
  for (const std::uint64_t id : {1U, 2U}) {
    const Status status = outcome(left_, id);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kPeerGone) << status.error().message;
  }
  EXPECT_EQ(left_.channel->state(), ChannelState::kFailed);
  EXPECT_FALSE(left_.channel->error().message.empty());
  EXPECT_FALSE(left_.channel->post(batch_of(3, small)));
}

// Speaks to an acceptor's channel by hand, after a proper handshake.
class PeerByHandTest : public ::testing::Test, protected ChannelPair {
 protected:
  static Options options() {
    Options made;
    made.connect_timeout = seconds(60);
    return made;
  }
  PeerByHandTest() : ChannelPair(options()) {}

  void connect() {
    right_.channel = *right_.transport->open_channel(setup(Role::kAcceptor));
    socket::PollSet polls = *socket::PollSet::open();
    Connector connector = *Connector::dial(*socket::Address::parse("127.0.0.1", 0),
                                           *ChannelAddress::decode(right_.channel->address()),
                                           setup(Role::kAcceptor).secret, polls);
    ASSERT_TRUE(serve([&] {
      if (!fd_) fd_ = *connector.advance();
      return right_.channel->state() == ChannelState::kReady;
    }));
  }

  template <class Done>
  bool serve(Done done) {
    const auto deadline = Clock::now() + seconds(60);
    while (!done() && Clock::now() < deadline) right_.progress();
    return done();
  }

  void send(const FrameHeader& header, ByteView rest = {}) {
    Bytes bytes(FrameHeader::kBytes);
    header.write_to(bytes.data());
    bytes.insert(bytes.end(), rest.begin(), rest.end());
    ASSERT_EQ(socket::try_send(fd_.get(), bytes)->bytes, bytes.size());
  }

  void expect_protocol_error() {
    ASSERT_TRUE(serve([&] { return right_.channel->state() == ChannelState::kFailed; }));
    EXPECT_EQ(right_.channel->error().code, ErrorCode::kProtocol) << right_.channel->error().message;
  }

  UniqueFd fd_;
};

TEST_F(PeerByHandTest, RandomBytesEndTheStream) {
  std::mt19937_64 random(17);
  for (int round = 0; round != 20; ++round) {
    fd_.reset();
    connect();
    Bytes noise(200);
    for (auto& byte : noise) byte = static_cast<std::byte>(random());
    ASSERT_TRUE(socket::try_send(fd_.get(), noise));
    expect_protocol_error();
  }
}

TEST_F(PeerByHandTest, AcknowledgementOfWhatWasNotSentEndsTheStream) {
  connect();
  send({.type = FrameType::kAck, .acknowledged = 1});
  expect_protocol_error();
}

TEST_F(PeerByHandTest, BytesThatWereNotAskedForEndTheStream) {
  connect();
  send({.type = FrameType::kReadResponse, .payload_bytes = 10, .number = 1}, Bytes(10));
  expect_protocol_error();
}

TEST_F(PeerByHandTest, WritesOutOfOrderEndTheStream) {
  connect();
  send({.type = FrameType::kWrite, .number = 2});
  expect_protocol_error();
}

TEST_F(PeerByHandTest, AWriteToReadOnlyMemoryIsRefusedAndChangesNothing) {
  connect();
  std::vector<std::byte> bytes(64, std::byte{7});
  const RegionInfo info{
      .id = RegionId{5},
      .base = bytes.data(),
      .size = bytes.size(),
      .options = std::make_shared<const RegionOptions>(RegionOptions{.read_only = true, .peers = {}})};
  const auto kept = right_.transport->register_memory(info);
  ASSERT_TRUE(kept);
  const RangeList list{.ranges = {{reinterpret_cast<std::uint64_t>(bytes.data()), bytes.size()}},
                       .groups = {{info.id, info.key, 1}}};
  Bytes rest;
  encode_ranges(list, rest);
  FrameHeader write{.type = FrameType::kWrite, .payload_bytes = 64, .number = 1};
  write.descriptor_bytes = static_cast<std::uint32_t>(rest.size());
  rest.resize(rest.size() + bytes.size(), std::byte{1});
  send(write, rest);
  Bytes answer;
  ASSERT_TRUE(serve([&] {
    Bytes some(FrameHeader::kBytes - answer.size());
    const auto came = socket::try_receive(fd_.get(), some);
    if (came) answer.insert(answer.end(), some.begin(), some.begin() + static_cast<long>(came->bytes));
    return answer.size() == FrameHeader::kBytes;
  }));
  const auto refusal = FrameHeader::parse(answer);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->type, FrameType::kRefusal);
  EXPECT_EQ(wire_error(refusal->code, {}).code, ErrorCode::kPermissionDenied);
  EXPECT_EQ(bytes, std::vector<std::byte>(64, std::byte{7}));
  EXPECT_EQ(right_.channel->state(), ChannelState::kReady);
}

TEST_F(PeerByHandTest, TooManyReadsEndTheStream) {
  connect();
  // More than the socket takes, so that the answers wait.
  Memory memory = right_.memory(32 * kMiB, *left_.transport);
  const std::vector<Segment> segments{{nullptr, memory.address(), 32 * kMiB, nullptr, memory.key.get()}};
  RangeList ranges;
  collect_ranges(batch_of(1, segments), ranges);
  Bytes descriptors;
  encode_ranges(ranges, descriptors);
  for (std::uint64_t number = 1; number != kMaxReads + 2; ++number) {
    send({.type = FrameType::kReadRequest,
          .descriptor_bytes = static_cast<std::uint32_t>(descriptors.size()),
          .length = 32 * kMiB,
          .number = number},
         descriptors);
  }
  expect_protocol_error();
}

TEST_F(PeerByHandTest, FrameByteByByte) {
  connect();
  Memory memory = right_.memory(1000, *left_.transport);
  const std::vector<Segment> segments{{nullptr, memory.address() + 100, 50, nullptr, memory.key.get()}};
  RangeList ranges;
  collect_ranges(batch_of(1, segments), ranges);
  Bytes frame(FrameHeader::kBytes);
  encode_ranges(ranges, frame);
  FrameHeader header{.type = FrameType::kWrite, .payload_bytes = 50, .number = 1};
  header.descriptor_bytes = static_cast<std::uint32_t>(frame.size() - FrameHeader::kBytes);
  header.write_to(frame.data());
  frame.resize(frame.size() + 50, std::byte{0x77});
  for (const std::byte& byte : frame) {
    ASSERT_TRUE(socket::try_send(fd_.get(), ByteView(&byte, 1)));
    right_.progress();
  }
  ASSERT_TRUE(serve([&] { return memory.bytes[149] == std::byte{0x77}; }));
  EXPECT_EQ(memory.bytes[100], std::byte{0x77});
  EXPECT_EQ(memory.bytes[99], std::byte{0});
  EXPECT_EQ(memory.bytes[150], std::byte{0});
  EXPECT_EQ(right_.channel->state(), ChannelState::kReady);
}

}  // namespace
}  // namespace p2p::tcp
