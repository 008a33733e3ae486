// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <sys/epoll.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "drivers/socket/socket.h"
#include "transport/tcp/connect/acceptor.h"
#include "transport/tcp/connect/connecting.h"
#include "transport/tcp/connect/connector.h"

namespace p2p::tcp {
namespace {

using std::chrono::seconds;

const socket::Address kLoopback = *socket::Address::parse("127.0.0.1", 0);

Secret secret_of(std::uint8_t fill) {
  Secret secret;
  secret.fill(static_cast<std::byte>(fill));
  return secret;
}

/// An endpoint's port, of which the test is the reactor.
class FakePort : public StreamPort {
 public:
  Result<std::uint16_t> open_at(const std::string& /*address*/) override { return address_.port(); }
  void expect(const StreamPort::Token& token, Take take) override { takers_[token] = std::move(take); }
  void forget(const StreamPort::Token& token) override { takers_.erase(token); }

  const socket::Address& address() const { return address_; }
  std::size_t awaited() const { return takers_.size(); }

  /// Hands on what has connected and said its prefix.
  void pump() {
    if (UniqueFd fd = *socket::try_accept(listener_.get())) waiting_.push_back(std::move(fd));
    for (UniqueFd& fd : waiting_) {
      Bytes prefix(kPrefixBytes);
      const auto peeked = socket::try_peek(fd.get(), prefix);
      if (!peeked || peeked->bytes != kPrefixBytes) continue;
      StreamPort::Token token;
      std::copy(prefix.begin() + 6, prefix.end(), token.begin());
      if (const auto found = takers_.find(token); found != takers_.end()) found->second(std::move(fd));
    }
    std::erase_if(waiting_, [](const UniqueFd& fd) { return !fd; });
  }

 private:
  UniqueFd listener_ = *socket::open_listener(kLoopback, 16);
  const socket::Address address_ = *socket::local_address(listener_.get());
  std::vector<UniqueFd> waiting_;
  std::map<StreamPort::Token, Take> takers_;
};

class HandshakeTest : public ::testing::Test {
 protected:
  Acceptor listen(const Secret& secret) { return *Acceptor::listen(kLoopback, secret, polls_); }

  Connector dial(const Acceptor& acceptor, const Secret& secret) {
    return *Connector::dial(kLoopback, *ChannelAddress::decode(acceptor.address().encode()), secret,
                            dial_polls_);
  }

  // Until both have their socket, one has failed or the time is over.
  void run(Acceptor& acceptor, Connector& connector) {
    const Clock::time_point deadline = Clock::now() + seconds(20);
    while (Clock::now() < deadline && !(accepted_ && dialled_)) {
      if (port_) port_->pump();
      if (!accepted_) {
        Result<UniqueFd> fd = acceptor.advance();
        ASSERT_TRUE(fd) << fd.error().message;
        accepted_ = std::move(*fd);
      }
      if (!dialled_) {
        Result<UniqueFd> fd = connector.advance();
        if (!fd) {
          dial_error_ = fd.error();
          return;
        }
        dialled_ = std::move(*fd);
      }
    }
  }

  void settle(Acceptor& acceptor, int rounds = 20) {
    for (int i = 0; i != rounds; ++i) {
      epoll_event event{};
      ::epoll_wait(polls_.fd(), &event, 1, 5);
      Result<UniqueFd> fd = acceptor.advance();
      ASSERT_TRUE(fd);
      ASSERT_FALSE(*fd);
    }
  }

  UniqueFd stranger(const Acceptor& acceptor) {
    UniqueFd fd = *socket::start_dial(kLoopback, acceptor.address().address);
    const Clock::time_point deadline = Clock::now() + seconds(10);
    while (Clock::now() < deadline && !*socket::dial_finished(fd.get())) {
    }
    return fd;
  }

  socket::PollSet polls_ = *socket::PollSet::open();
  socket::PollSet dial_polls_ = *socket::PollSet::open();
  std::shared_ptr<FakePort> port_;  // if that is where it listens
  UniqueFd accepted_;
  UniqueFd dialled_;
  Error dial_error_;
};

TEST_F(HandshakeTest, JoinsBothSides) {
  Acceptor acceptor = listen(secret_of(1));
  Connector connector = dial(acceptor, secret_of(1));
  run(acceptor, connector);
  ASSERT_TRUE(accepted_ && dialled_) << dial_error_.message;
  const std::array<std::byte, 3> sent{std::byte{7}, std::byte{8}, std::byte{9}};
  ASSERT_TRUE(socket::try_send(dialled_.get(), sent));
  std::array<std::byte, 8> got{};
  const Clock::time_point deadline = Clock::now() + seconds(10);
  std::size_t bytes = 0;
  while (bytes == 0 && Clock::now() < deadline) bytes = socket::try_receive(accepted_.get(), got)->bytes;
  EXPECT_EQ(bytes, 3U);
  EXPECT_EQ(got[0], std::byte{7});
}

TEST_F(HandshakeTest, JoinsBothSidesAtTheEndpointsPort) {
  port_ = std::make_shared<FakePort>();
  Acceptor acceptor = *Acceptor::await(port_, port_->address(), secret_of(1), polls_);
  Connector connector = dial(acceptor, secret_of(1));
  run(acceptor, connector);
  EXPECT_TRUE(accepted_ && dialled_) << dial_error_.message;
  EXPECT_EQ(port_->awaited(), 0U) << "nobody else is let in";
}

TEST_F(HandshakeTest, WhoKnowsTheTokenAloneIsRefusedThere) {
  port_ = std::make_shared<FakePort>();
  {
    Acceptor acceptor = *Acceptor::await(port_, port_->address(), secret_of(1), polls_);
    Connector connector = dial(acceptor, secret_of(2));
    run(acceptor, connector);
    EXPECT_FALSE(accepted_);
    EXPECT_EQ(port_->awaited(), 1U);
  }
  EXPECT_EQ(port_->awaited(), 0U);
}

TEST_F(HandshakeTest, DialsTheSessionsAddressAgainWhenClosedUnanswered) {
  port_ = std::make_shared<FakePort>();
  ChannelSetup setup{.role = Role::kAcceptor,
                     .rail = {"lo", "127.0.0.1"},
                     .path = {"127.0.0.1", "127.0.0.1", port_->address().port()}};
  setup.secret = secret_of(1);
  setup.port = port_;
  Connecting accepting = *Connecting::start(setup, seconds(20), polls_);
  EXPECT_EQ(accepting.address().address.family(), AF_UNSPEC) << "where the session was dialled";
  UniqueFd flooded = *socket::open_listener(kLoopback, 1);
  setup.role = Role::kConnector;
  setup.path.remote_port = socket::local_address(flooded.get())->port();
  Connecting dialling = *Connecting::start(setup, seconds(20), dial_polls_);
  ASSERT_TRUE(dialling.connect(accepting.address().encode()));
  const Clock::time_point deadline = Clock::now() + seconds(20);
  int refused = 0;
  UniqueFd came;
  while (!came && Clock::now() < deadline) {
    ASSERT_FALSE(*dialling.advance());
    UniqueFd fd = *socket::try_accept(flooded.get());
    if (fd && ++refused > 3) came = std::move(fd);
  }
  EXPECT_TRUE(came);
}

TEST_F(HandshakeTest, RefusesOneWithoutTheSecret) {
  Acceptor acceptor = listen(secret_of(1));
  Connector connector = dial(acceptor, secret_of(2));
  run(acceptor, connector);
  EXPECT_FALSE(accepted_);
  EXPECT_EQ(dial_error_.code, ErrorCode::kPermissionDenied) << dial_error_.message;
}

TEST_F(HandshakeTest, ListensOnAfterStrangers) {
  Acceptor acceptor = listen(secret_of(1));
  std::mt19937_64 random(9);
  std::vector<UniqueFd> strangers;
  for (int i = 0; i != 30; ++i) {
    strangers.push_back(stranger(acceptor));
    Bytes noise(random() % 300);
    for (auto& byte : noise) byte = static_cast<std::byte>(random());
    if (!noise.empty()) (void)socket::try_send(strangers.back().get(), noise);
    if (i % 3 == 0) strangers.back().reset();
    if (i % 10 == 9) settle(acceptor, 3);
  }
  Connector connector = dial(acceptor, secret_of(1));
  run(acceptor, connector);
  EXPECT_TRUE(accepted_ && dialled_) << dial_error_.message;
}

TEST_F(HandshakeTest, ListensOnAfterOneThatKnowsTheTokenOnly) {
  Acceptor acceptor = listen(secret_of(1));
  UniqueFd fd = stranger(acceptor);
  Bytes greeting;
  ByteWriter writer(greeting);
  writer.put(std::uint32_t{0x74703270});
  writer.put(kHandshakeVersion);
  writer.put(ByteView(acceptor.address().token));
  writer.put(ByteView(Nonce{}));
  ASSERT_TRUE(socket::try_send(fd.get(), greeting));
  settle(acceptor, 3);
  ASSERT_TRUE(socket::try_send(fd.get(), Bytes(32)));  // no proof
  settle(acceptor, 3);
  Connector connector = dial(acceptor, secret_of(1));
  run(acceptor, connector);
  EXPECT_TRUE(accepted_ && dialled_) << dial_error_.message;
}

// The path is long: the greeting is overheard and comes again, many times, before the peer has its answer.
TEST_F(HandshakeTest, WhoeverOverheardTheTokenDoesNotTakeThePlaceOfWhoHasBegun) {
  Acceptor acceptor = listen(secret_of(1));
  Connector connector = dial(acceptor, secret_of(1));
  for (int i = 0; i != 20; ++i) {  // it greets, and nobody answers yet
    const bool is_joined = static_cast<bool>(*connector.advance());
    ASSERT_FALSE(is_joined);
    epoll_event event{};
    ::epoll_wait(dial_polls_.fd(), &event, 1, 5);
  }
  settle(acceptor, 5);  // the answer stays unread
  const Bytes overheard = Greeting{.token = acceptor.address().token, .nonce = {}}.encode();
  std::vector<UniqueFd> strangers;
  for (int i = 0; i != 24; ++i) {
    strangers.push_back(stranger(acceptor));
    ASSERT_TRUE(socket::try_send(strangers.back().get(), overheard));
    settle(acceptor, 2);
  }
  run(acceptor, connector);
  EXPECT_TRUE(accepted_ && dialled_) << dial_error_.message;
}

TEST_F(HandshakeTest, DropsSilentStrangersInTime) {
  Acceptor acceptor = listen(secret_of(1));
  const UniqueFd silent = stranger(acceptor);
  const Clock::time_point deadline = Clock::now() + seconds(20);
  settle(acceptor, 1);
  ASSERT_LT(acceptor.next_deadline(), deadline);
  polls_.set_alarm(acceptor.next_deadline());
  bool ended = false;
  while (!ended && Clock::now() < deadline) {
    settle(acceptor, 1);
    std::array<std::byte, 1> byte{};
    const Result<socket::Moved> moved = socket::try_receive(silent.get(), byte);
    ended = !moved || moved->ended;
  }
  EXPECT_TRUE(ended);
  EXPECT_EQ(acceptor.next_deadline(), Clock::time_point::max());
}

TEST_F(HandshakeTest, ConnectorRefusesAnImpostor) {
  UniqueFd listener = *socket::open_listener(kLoopback, 1);
  const ChannelAddress address{.address = *socket::local_address(listener.get())};
  Connector connector = *Connector::dial(kLoopback, address, secret_of(1), dial_polls_);
  UniqueFd impostor;
  const Clock::time_point deadline = Clock::now() + seconds(20);
  Result<UniqueFd> dialled;
  while (dialled && Clock::now() < deadline) {
    dialled = connector.advance();
    ASSERT_TRUE(!dialled || !*dialled);
    if (impostor) continue;
    impostor = *socket::try_accept(listener.get());
    if (impostor) {
      ASSERT_TRUE(socket::try_send(impostor.get(), Bytes(200, std::byte{0x70})));
    }
  }
  ASSERT_FALSE(dialled);
  EXPECT_EQ(dialled.error().code, ErrorCode::kPermissionDenied);
}

TEST(ChannelAddress, RefusesNonsense) {
  ChannelAddress address{.address = *socket::Address::parse("::1", 4000)};
  address.token.fill(std::byte{3});
  const Bytes good = address.encode();
  const Result<ChannelAddress> back = ChannelAddress::decode(good);
  ASSERT_TRUE(back);
  EXPECT_EQ(back->address.describe(), "[::1]:4000");
  EXPECT_EQ(back->token, address.token);
  for (std::size_t size = 0; size != good.size(); ++size) {
    EXPECT_FALSE(ChannelAddress::decode(ByteView(good).first(size)));
  }
  EXPECT_EQ(ChannelAddress::decode(ChannelAddress{}.encode())->address.family(), AF_UNSPEC);
  Bytes longer = good;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(ChannelAddress::decode(longer));
  Bytes named = good;
  named.back() = std::byte{'x'};
  EXPECT_FALSE(ChannelAddress::decode(named));
}

}  // namespace
}  // namespace p2p::tcp
