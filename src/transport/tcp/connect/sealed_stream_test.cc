// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Encrypted streams with somebody between both sides.
#include "transport/tcp/connect/sealed_stream.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <vector>

#include "drivers/socket/socket.h"
#include "transport/tcp/channel_pair.h"
#include "transport/tcp/stream/frame.h"

namespace p2p::tcp {
namespace {

/// Hands on what the two ends of a stream say, takes it down, and may change it.
class Relay {
 public:
  struct Way {
    Bytes heard;    ///< all that came
    Bytes waiting;  ///< not handed on yet
    std::function<void(Bytes& bytes, std::size_t before)> change;
  };

  /// In front of an acceptor's channel; what the connector is to dial instead.
  Bytes stand_before(const Bytes& acceptor) {
    ChannelAddress address = *ChannelAddress::decode(acceptor);
    target_ = address.address;
    listener_ = *socket::open_listener(*socket::Address::parse("127.0.0.1", 0), 4);
    address.address = *socket::local_address(listener_.get());
    return address.encode();
  }

  void move() {
    if (!near_) {
      near_ = *socket::try_accept(listener_.get());
      if (near_) far_ = *socket::start_dial(*socket::Address::parse("127.0.0.1", 0), target_);
      return;
    }
    if (!joined_) {
      joined_ = *socket::dial_finished(far_.get());
      return;
    }
    if (!near_ || !far_) return;
    if (!copy(near_, far_, forth) || !copy(far_, near_, back)) cut();
  }

  void cut() {
    ::shutdown(near_.get(), SHUT_RDWR);
    ::shutdown(far_.get(), SHUT_RDWR);
  }

  Way forth;  ///< from the connector
  Way back;

 private:
  static bool copy(const UniqueFd& from, const UniqueFd& to, Way& way) {
    std::array<std::byte, 65536> some{};
    const auto came = socket::try_receive(from.get(), some);
    if (!came || came->ended) return false;
    Bytes bytes(some.begin(), some.begin() + static_cast<long>(came->bytes));
    if (way.change && !bytes.empty()) way.change(bytes, way.heard.size());
    way.heard.insert(way.heard.end(), bytes.begin(), bytes.end());
    way.waiting.insert(way.waiting.end(), bytes.begin(), bytes.end());
    const auto sent = socket::try_send(to.get(), way.waiting);
    if (!sent) return false;
    way.waiting.erase(way.waiting.begin(), way.waiting.begin() + static_cast<long>(sent->bytes));
    return true;
  }

  socket::Address target_;
  UniqueFd listener_;
  UniqueFd near_;
  UniqueFd far_;
  bool joined_ = false;
};

class SealedStreamTest : public ::testing::Test, protected ChannelPair {
 protected:
  SealedStreamTest() { encrypt_ = true; }

  bool open_through_relay() {
    left_.channel = *left_.transport->open_channel(setup(Role::kConnector));
    right_.channel = *right_.transport->open_channel(setup(Role::kAcceptor));
    return right_.channel->connect(left_.channel->address()) &&
           left_.channel->connect(relay_.stand_before(right_.channel->address())) &&
           relay([&] { return in(ChannelState::kReady); });
  }

  bool in(ChannelState state) const {
    return left_.channel->state() == state && right_.channel->state() == state;
  }

  template <class Done>
  bool relay(Done done) {
    return drive([&] {
      relay_.move();
      return done();
    });
  }

  /// Moves a batch through the relay; what became of it.
  Status move(std::uint64_t id, const Memory& here, const Memory& there, Operation operation) {
    const std::vector<Segment> segments{whole(here, there)};
    if (!left_.channel->post(batch_of(id, segments, operation))) {
      return tl::unexpected(Error{ErrorCode::kUnavailable, "not taken"});
    }
    if (!relay([&] { return left_.find(id) != nullptr; })) {
      return tl::unexpected(Error{ErrorCode::kTimedOut, "no completion"});
    }
    return left_.find(id)->status;
  }

  /// What landed is what was sent, and the rest is as it was; some of it did not land.
  static void expect_nothing_wrong(const Memory& landed, const Memory& sent) {
    std::size_t missing = 0;
    for (std::size_t i = 0; i != sent.bytes.size(); ++i) {
      if (landed.bytes[i] == sent.bytes[i]) continue;
      ASSERT_EQ(landed.bytes[i], std::byte{0xee}) << "byte " << i;
      ++missing;
    }
    EXPECT_NE(missing, 0U);
  }

  Memory blank(Side& side, Side& other, std::size_t size) {
    Memory made = side.memory(size, *other.transport);
    std::ranges::fill(made.bytes, std::byte{0xee});
    return made;
  }

  Relay relay_;
};

bool holds(const Bytes& bytes, const Memory& memory) {
  for (std::size_t at = 0; at + 16 <= memory.bytes.size(); at += memory.bytes.size() / 8) {
    const auto from = memory.bytes.begin() + static_cast<long>(at);
    if (std::search(bytes.begin(), bytes.end(), from, from + 16) != bytes.end()) return true;
  }
  return false;
}

TEST_F(SealedStreamTest, WhoListensSeesNoDataNorKeys) {
  for (const bool encrypt : {true, false}) {
    encrypt_ = encrypt;
    relay_ = {};
    ASSERT_TRUE(open_through_relay());
    EXPECT_EQ(left_.channel->describe().ends_with(", TLS"), encrypt) << left_.channel->describe();
    for (const std::size_t size : {std::size_t{64}, 3 * kMiB}) {
      Memory here = left_.memory(size, *right_.transport);
      Memory there = right_.memory(size, *left_.transport);
      here.fill(size);
      ASSERT_TRUE(move(size, here, there, Operation::kWrite));
      EXPECT_EQ(there.bytes, here.bytes);
      EXPECT_EQ(holds(relay_.forth.heard, here), !encrypt) << size;
      there.fill(size + 1);
      ASSERT_TRUE(move(size + 1, here, there, Operation::kRead));
      EXPECT_EQ(there.bytes, here.bytes);
      EXPECT_EQ(holds(relay_.back.heard, here), !encrypt) << size;
    }
    // Keys of regions travel with each request.
    Memory keyed = right_.memory(64, *left_.transport);
    Memory here = left_.memory(64, *right_.transport);
    ASSERT_TRUE(move(7, here, keyed, Operation::kWrite));
    const RegionKey& key = keyed.registration->info().key;
    const Bytes& heard = relay_.forth.heard;
    EXPECT_EQ(std::search(heard.begin(), heard.end(), key.begin(), key.end()) != heard.end(), !encrypt);
    left_.channel.reset();
    right_.channel.reset();
    left_.completions.clear();
  }
}

TEST_F(SealedStreamTest, ChangedBytesEndTheStreamAndNeverLand) {
  for (const Operation operation : {Operation::kWrite, Operation::kRead}) {
    for (const std::size_t at : {std::size_t{1}, std::size_t{90}, std::size_t{20'000}, kMiB - 5}) {
      relay_ = {};
      left_.completions.clear();
      ASSERT_TRUE(open_through_relay());
      const bool write = operation == Operation::kWrite;
      Memory here = blank(left_, right_, kMiB);
      Memory there = blank(right_, left_, kMiB);
      (write ? here : there).fill(at);
      Relay::Way& way = write ? relay_.forth : relay_.back;
      const std::size_t target = way.heard.size() + at;
      way.change = [target](Bytes& bytes, std::size_t before) {
        if (before <= target && target < before + bytes.size()) bytes[target - before] ^= std::byte{4};
      };
      const Status moved = move(1, here, there, operation);
      ASSERT_FALSE(moved) << at;
      EXPECT_NE(moved.error().code, ErrorCode::kTimedOut) << moved.error().message;
      ASSERT_TRUE(relay([&] { return in(ChannelState::kFailed); }));
      EXPECT_EQ((write ? right_ : left_).channel->error().code, ErrorCode::kProtocol);
      expect_nothing_wrong(write ? there : here, write ? here : there);
    }
  }
}

TEST_F(SealedStreamTest, BytesThatComeTwiceEndTheStream) {
  ASSERT_TRUE(open_through_relay());
  Memory here = left_.memory(1000, *right_.transport);
  Memory there = right_.memory(1000, *left_.transport);
  here.fill(1);
  bool twice = true;
  relay_.forth.change = [&twice](Bytes& bytes, std::size_t /*before*/) {
    if (std::exchange(twice, false)) {
      const Bytes once = bytes;
      bytes.insert(bytes.end(), once.begin(), once.end());
    }
  };
  (void)move(1, here, there, Operation::kWrite);
  ASSERT_TRUE(relay([&] { return right_.channel->state() == ChannelState::kFailed; }));
  EXPECT_EQ(right_.channel->error().code, ErrorCode::kProtocol) << right_.channel->error().message;
}

TEST_F(SealedStreamTest, FramesInClearEndTheStream) {
  ASSERT_TRUE(open_through_relay());
  Memory here = left_.memory(1000, *right_.transport);
  Memory there = right_.memory(1000, *left_.transport);
  here.fill(1);
  relay_.forth.change = [](Bytes& bytes, std::size_t /*before*/) {
    Bytes frame(FrameHeader::kBytes);
    FrameHeader{.type = FrameType::kAck}.write_to(frame.data());
    bytes.insert(bytes.begin(), frame.begin(), frame.end());
  };
  EXPECT_FALSE(move(1, here, there, Operation::kWrite));
  ASSERT_TRUE(relay([&] { return in(ChannelState::kFailed); }));
  EXPECT_EQ(right_.channel->error().code, ErrorCode::kProtocol) << right_.channel->error().message;
  EXPECT_EQ(there.bytes, Bytes(1000));
}

TEST_F(SealedStreamTest, CutInTheMiddleOfARecordIsAnErrorOnBothSides) {
  ASSERT_TRUE(open_through_relay());
  Memory here = blank(left_, right_, kMiB);
  Memory there = blank(right_, left_, kMiB);
  here.fill(5);
  const std::size_t end = relay_.forth.heard.size() + 300'001;
  bool over = false;
  relay_.forth.change = [end, &over](Bytes& bytes, std::size_t before) {
    over = over || before + bytes.size() >= end;
    if (over) bytes.resize(before >= end ? 0 : end - before);
  };
  const std::vector<Segment> segments{whole(here, there)};
  ASSERT_TRUE(left_.channel->post(batch_of(1, segments)));
  ASSERT_TRUE(relay([&] { return over && relay_.forth.waiting.empty(); }));
  relay_.cut();
  ASSERT_TRUE(relay([&] { return in(ChannelState::kFailed); }));
  EXPECT_EQ(right_.channel->error().code, ErrorCode::kPeerGone) << right_.channel->error().message;
  ASSERT_NE(left_.find(1), nullptr);
  EXPECT_FALSE(left_.find(1)->status);
  expect_nothing_wrong(there, here);
}

TEST_F(SealedStreamTest, APeerThatDoesNotEncryptIsNotServed) {
  for (const bool connector : {true, false}) {
    encrypt_ = connector;
    left_.channel = *left_.transport->open_channel(setup(Role::kConnector));
    encrypt_ = !connector;
    right_.channel = *right_.transport->open_channel(setup(Role::kAcceptor));
    ASSERT_TRUE(right_.channel->connect(left_.channel->address()));
    ASSERT_TRUE(left_.channel->connect(right_.channel->address()));
    Side& plain = connector ? right_ : left_;
    Side& sealed = connector ? left_ : right_;
    ASSERT_TRUE(drive([&] { return plain.channel->state() != ChannelState::kConnecting; }));
    Memory memory = sealed.memory(64, *plain.transport);
    Memory own = plain.memory(64, *sealed.transport);
    own.fill(1);
    const std::vector<Segment> segments{whole(own, memory)};
    (void)plain.channel->post(batch_of(1, segments));
    ASSERT_TRUE(drive([&] { return in(ChannelState::kFailed); }));
    EXPECT_EQ(memory.bytes, Bytes(64));
    EXPECT_EQ(sealed.channel->error().code, ErrorCode::kProtocol) << sealed.channel->error().message;
  }
}

/// Both give up the handshake of one that is tampered with from its first byte on.
TEST_F(SealedStreamTest, ChangesOfTheHandshakeKeepTheStreamFromOpening) {
  constexpr std::size_t kProofs = 6 + 16 + 32 + 32;  // what the connector says before TLS
  for (const std::size_t at : {kProofs, kProofs + 11, kProofs + 60}) {
    relay_ = {};
    relay_.forth.change = [at](Bytes& bytes, std::size_t before) {
      if (before <= at && at < before + bytes.size()) bytes[at - before] ^= std::byte{1};
    };
    left_.channel = *left_.transport->open_channel(setup(Role::kConnector));
    right_.channel = *right_.transport->open_channel(setup(Role::kAcceptor));
    ASSERT_TRUE(right_.channel->connect(left_.channel->address()));
    ASSERT_TRUE(left_.channel->connect(relay_.stand_before(right_.channel->address())));
    ASSERT_TRUE(relay([&] { return in(ChannelState::kFailed); })) << at;
  }
}

}  // namespace
}  // namespace p2p::tcp
