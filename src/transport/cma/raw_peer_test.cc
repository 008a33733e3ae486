// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Peers that ask for what no channel asks for, or answer what nobody asked: by hand, at the other end of a
// socket.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <limits>
#include <random>
#include <vector>

#include "base/error.h"
#include "base/underlying.h"
#include "drivers/socket/local_socket.h"
#include "transport/cma/owner_copies_testing.h"

namespace p2p::cma::raw_peer_test {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kArea = 4096;

CopyRequest request_of(const Bytes& slot, const RegionInfo& region, std::uint64_t batch = 1) {
  const auto base = reinterpret_cast<std::uint64_t>(region.base);
  const auto at = reinterpret_cast<std::uint64_t>(slot.data());
  return {.batch = batch,
          .operation = Operation::kWrite,
          .regions = {{region.id, region.key}},
          .pieces = {{base + 64, at, 100, 0}, {base + 300, at + 100, 28, 0}}};
}

/// A channel, and a peer of this process that speaks to it by hand.
class CmaRawPeer : public ::testing::Test {
 protected:
  void SetUp() override { connect(); }

  void connect() {
    channel_ = open_channel(Role::kAcceptor, regions_, pool_);
    const auto host = Host::here();
    ASSERT_TRUE(host);
    const Address mine{
        .host = *host, .pid = static_cast<std::uint32_t>(::getpid()), .listener = Address::kTakesRequests};
    ASSERT_TRUE(channel_->connect(mine.serialize()));
    const auto listener = Address::parse(channel_->address());
    ASSERT_TRUE(listener);
    socket_ = socket::connect_locally(name_of(listener->listener)).value();
    proof_.token_address = reinterpret_cast<std::uint64_t>(proof_.token.data());
    const Bytes proof = proof_.serialize({.role = Role::kConnector}, listener->listener);
    ASSERT_TRUE(socket::send_packet(socket_, proof, {}, {}));
    turns();
    ASSERT_EQ(channel_->state(), ChannelState::kReady) << channel_->error().message;
    UniqueFd descriptor;
    Bytes answer(MemoryProof::kBytes + 1);
    ASSERT_GT(receive_with_descriptor(socket_, answer, descriptor), 0);
    ring_ = RingMemory::open(descriptor, 2).value();
    writer_ = RingWriter(ring_.direction(1, 1));
    reader_ = RingReader(ring_.direction(0, 1));
  }

  void turns() {
    for (int round = 0; round != 100; ++round) channel_->progress(done_);
  }

  void say(const Bytes& message) { ASSERT_TRUE(writer_.write(message).value()); }

  /// The channel's next message.
  CopyMessage hear() {
    Bytes message;
    const auto read = reader_.read(message);
    EXPECT_TRUE(read && *read);
    auto decoded = decode_copy_message(message);
    EXPECT_TRUE(decoded) << decoded.error().message;
    return decoded ? *std::move(decoded) : CopyMessage{};
  }

  /// A read into what is not the slot: into whatever the peer has there, and here the peer is this process.
  bool overwrites_other_memory(const Bytes& message) const {
    const auto decoded = decode_copy_message(message);
    const auto* const request = decoded ? std::get_if<CopyRequest>(&*decoded) : nullptr;
    if (request == nullptr || request->operation != Operation::kRead) return false;
    const RegionInfo slot{.base = const_cast<std::byte*>(slot_.data()), .size = slot_.size()};
    return std::ranges::any_of(request->pieces, [&](const CopyRequest::Piece& piece) {
      return !slot.contains(piece.mine, piece.size);
    });
  }

  void expect_breach(std::string_view why) {
    turns();
    ASSERT_EQ(channel_->state(), ChannelState::kFailed);
    EXPECT_EQ(channel_->error().code, ErrorCode::kProtocol);
    EXPECT_THAT(channel_->error().message, HasSubstr(std::string(why)));
    EXPECT_EQ(memory_, before_);
  }

  Bytes slot_ = pattern(kMaxBatchBytes, 1);
  Bytes memory_ = pattern(kMaxBatchBytes, 2);
  const Bytes before_ = memory_;
  const RegionInfo info_ = info_of(1, memory_.data() + kArea, kArea);
  const std::shared_ptr<RegistrationTable> regions_ = [this] {
    auto table = std::make_shared<RegistrationTable>();
    table->add(std::make_shared<Registration>(info_));
    return table;
  }();
  std::shared_ptr<device::StagingPool> pool_ = plain_pool();
  MemoryProof proof_;
  UniqueFd socket_;
  RingMemory ring_;
  RingWriter writer_;
  RingReader reader_;
  std::unique_ptr<Channel> channel_;
  std::vector<Completion> done_;
};

TEST_F(CmaRawPeer, GetsWhatItMayHave) {
  say(encode(request_of(slot_, info_)));
  turns();
  const CopyMessage answer = hear();
  ASSERT_TRUE(std::holds_alternative<CopyOutcome>(answer));
  EXPECT_TRUE(std::get<CopyOutcome>(answer).status);
  EXPECT_TRUE(std::equal(slot_.begin(), slot_.begin() + 100, memory_.begin() + kArea + 64));
  EXPECT_TRUE(std::equal(slot_.begin() + 100, slot_.begin() + 128, memory_.begin() + kArea + 300));
}

TEST_F(CmaRawPeer, ASlotThatIsNoMemoryFailsThatBatchAlone) {
  CopyRequest request = request_of(slot_, info_, 5);
  for (CopyRequest::Piece& piece : request.pieces) piece.mine = kArea;
  say(encode(request));
  turns();
  const CopyMessage answer = hear();
  ASSERT_TRUE(std::holds_alternative<CopyOutcome>(answer));
  EXPECT_EQ(std::get<CopyOutcome>(answer).batch, 5U);
  EXPECT_EQ(std::get<CopyOutcome>(answer).status.error().code, ErrorCode::kSystem);
  EXPECT_EQ(memory_, before_);
  EXPECT_EQ(channel_->state(), ChannelState::kReady);
}

TEST_F(CmaRawPeer, NonsenseEndsTheChannel) {
  say(Bytes(20, std::byte{0x5f}));
  expect_breach("of no known kind");
  connect();
  say({});
  expect_breach("of no known kind");
  connect();
  say(encode(CopyOutcome{1, {}}));
  expect_breach("copied batch 1, which it was not asked for");
  connect();
  CopyRequest part = request_of(slot_, info_);
  part.last = false;
  say(encode(part));
  expect_breach("asks for batch 1 in parts");
  connect();
  ring_.direction(1, 1).written.store(~std::uint64_t{0});
  expect_breach("a ring has");
}

TEST_F(CmaRawPeer, TooMuchAtOnceEndsTheChannel) {
  CopyRequest bad = request_of(slot_, info_);
  bad.regions[0].key = {};
  say(encode(bad));
  say(encode(bad));
  expect_breach("asks for batch 1 twice");
  connect();
  for (std::uint64_t batch = 0; batch != 200; ++batch) {
    bad.batch = batch;
    say(encode(bad));
  }
  expect_breach("asks for more than 64 batches");
  connect();
  CopyRequest long_one = bad;
  long_one.pieces[0].size = kMaxBatchBytes;
  say(encode(long_one));
  expect_breach("too long");
  connect();
  // Answers for which it leaves no room.
  ring_.direction(0, 1).read.store(std::numeric_limits<std::uint64_t>::max() - kRingBytes);
  say(encode(bad));
  expect_breach("as its reader counts");
}

// Its memory is the peer's until the peer is through, whatever it has done.
TEST_F(CmaRawPeer, ABreachEndsBatchesOnceThePeerIsThrough) {
  Bytes mine = pattern(kMaxBatchBytes, 3);
  const Registration local(as_device_memory(mine));
  const RemoteKey key(info_of(9, slot_.data(), slot_.size()));
  std::vector<Segment> list;
  const std::size_t piece = mine.size() / kOwnerPieces;
  for (std::size_t at = 0; at != mine.size(); at += piece) {
    list.push_back({&mine[at], reinterpret_cast<std::uint64_t>(&slot_[at]), piece, &local, &key});
  }
  ASSERT_TRUE(channel_->post({.id = BatchId{1}, .segments = list, .bytes = mine.size()}));
  turns();
  const CopyMessage asked = hear();
  ASSERT_TRUE(std::holds_alternative<CopyRequest>(asked));
  say({});
  turns();
  EXPECT_EQ(channel_->state(), ChannelState::kReady);
  EXPECT_TRUE(done_.empty());
  EXPECT_FALSE(channel_->post({.id = BatchId{2}, .segments = list, .bytes = mine.size()}));
  EXPECT_FALSE(channel_->busy());
  // What it was asked for lies where it was.
  const auto* const slot = reinterpret_cast<const std::byte*>(std::get<CopyRequest>(asked).pieces.at(0).mine);
  EXPECT_TRUE(std::equal(mine.begin(), mine.end(), slot));
  socket_.reset();
  turns();
  EXPECT_EQ(channel_->state(), ChannelState::kFailed);
  ASSERT_EQ(done_.size(), 1U);
  EXPECT_EQ(done_[0].status.error().code, ErrorCode::kProtocol);
}

TEST_F(CmaRawPeer, NothingElseIsTouchedWhateverItSays) {
  for (unsigned seed = 1; seed != 300; ++seed) {
    std::mt19937 random(seed);
    Bytes message = encode(request_of(slot_, info_));
    for (unsigned flips = random() % 4 + 1; flips != 0; --flips) {
      message[random() % message.size()] ^= static_cast<std::byte>(1U << random() % 8);
    }
    if (overwrites_other_memory(message)) continue;
    say(message);
    turns();
    ASSERT_TRUE(std::equal(memory_.begin(), memory_.begin() + kArea, before_.begin())) << seed;
    ASSERT_TRUE(std::equal(memory_.begin() + 2 * kArea, memory_.end(), before_.begin() + 2 * kArea)) << seed;
    if (channel_->state() == ChannelState::kFailed) connect();
  }
}

}  // namespace
}  // namespace p2p::cma::raw_peer_test
