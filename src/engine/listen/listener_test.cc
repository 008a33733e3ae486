// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/listen/listener.h"

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "support/bounds.h"
#include "support/stranger.h"

namespace p2p::engine {
namespace {

using namespace std::chrono_literals;
using p2p::testing::kLimit;

constexpr StreamPort::Token kToken{std::byte{7}};

Bytes stream_prefix() {
  Bytes bytes;
  ByteWriter out(bytes);
  out.put(StreamPort::kMagic);
  out.put(std::uint16_t{0});
  out.put(ByteView(kToken));
  return bytes;
}

class ListenerTest : public ::testing::Test {
 protected:
  void SetUp() override { reactor_ = std::move(Reactor::start().value()); }

  void TearDown() override {
    run([this] { listener_->close(); });
    reactor_->stop();
  }

  /// Listens on the loopback address. The welcome closes what it gets, and counts.
  void start(Strangers::Limits limits, std::chrono::milliseconds patience) {
    listener_ = std::make_unique<Listener>(*reactor_, Listener::Settings{limits, 0, patience},
                                           [this](UniqueFd, Strangers::Id stranger) {
                                             welcomed_.set_value(stranger);
                                             return [](Strangers::Id) {};
                                           });
    port_ = listener_->open(socket::Address::parse("127.0.0.1", 0).value()).value().port();
    run([this] { listener_->start(); });
  }

  void run(const std::function<void()>& task) {
    std::promise<void> ran;
    reactor_->post([&] {
      task();
      ran.set_value();
    });
    ASSERT_EQ(ran.get_future().wait_for(kLimit), std::future_status::ready);
  }

  Stranger dial() const {
    UniqueFd fd = UniqueFd::of(::socket, AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in there{};
    there.sin_family = AF_INET;
    there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    there.sin_port = htons(port_);
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&there), sizeof there), 0);
    return Stranger(std::move(fd));
  }

  std::unique_ptr<Reactor> reactor_;
  std::unique_ptr<Listener> listener_;
  std::uint16_t port_ = 0;
  std::promise<Strangers::Id> welcomed_;
};

TEST_F(ListenerTest, AControlConnectionGoesToTheWelcome) {
  start({8, 8}, kLimit);
  Stranger peer = dial();
  peer.send(wire::Hello{});
  ASSERT_EQ(welcomed_.get_future().wait_for(kLimit), std::future_status::ready);
  EXPECT_TRUE(peer.dropped()) << "its socket was the welcome's to close";
  EXPECT_EQ(listener_->refused(), 0U);
}

TEST_F(ListenerTest, AStreamGoesToWhoExpectsItWithItsPrefixUnread) {
  start({8, 8}, kLimit);
  std::promise<UniqueFd> taken;
  listener_->expect(kToken, [&](UniqueFd socket) { taken.set_value(std::move(socket)); });
  Stranger peer = dial();
  peer.send(ByteView(stream_prefix()));
  auto came = taken.get_future();
  ASSERT_EQ(came.wait_for(kLimit), std::future_status::ready);
  Bytes prefix(StreamPort::kPrefixBytes);
  EXPECT_EQ(::recv(came.get().get(), prefix.data(), prefix.size(), MSG_WAITALL),
            static_cast<ssize_t>(prefix.size()));
  EXPECT_EQ(prefix, stream_prefix());

  listener_->forget(kToken);
  Stranger late = dial();
  late.send(ByteView(stream_prefix()));
  EXPECT_TRUE(late.dropped());
  EXPECT_EQ(listener_->refused(), 1U);
}

TEST_F(ListenerTest, APeerThatResumesAnUnknownSessionIsToldSo) {
  start({8, 8}, kLimit);
  Stranger peer = dial();
  peer.send(wire::Resume{});
  const auto answer = peer.next();
  ASSERT_TRUE(answer);
  EXPECT_TRUE(std::holds_alternative<wire::ResumeAnswer>(*answer));
  EXPECT_TRUE(peer.dropped());
}

TEST_F(ListenerTest, AnotherProtocolIsClosed) {
  start({8, 8}, kLimit);
  Stranger peer = dial();
  peer.send(as_bytes("GET / HTTP/1.1\r\nHost: here\r\n\r\n"));
  EXPECT_TRUE(peer.dropped());
  EXPECT_EQ(listener_->refused(), 1U);
}

TEST_F(ListenerTest, ASilentConnectionIsClosedWhenItsTimeIsOver) {
  start({8, 8}, 1ms);
  EXPECT_TRUE(dial().dropped());
  EXPECT_EQ(listener_->refused(), 1U);
}

TEST_F(ListenerTest, BeyondTheLimitTheOldestIsClosed) {
  start({2, 2}, kLimit);
  Stranger first = dial();
  Stranger second = dial();
  Stranger third = dial();
  EXPECT_TRUE(first.dropped());
  EXPECT_EQ(listener_->refused(), 1U);
}

TEST_F(ListenerTest, OpensAnAddressAtMostOnce) {
  start({8, 8}, kLimit);
  run([this] {
    EXPECT_EQ(listener_->open_at("127.0.0.1").value(), port_);
    EXPECT_EQ(listener_->open_at("127.0.0.2").value(), port_);
    EXPECT_FALSE(listener_->open_at("not an address"));
  });
}

}  // namespace
}  // namespace p2p::engine
