// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// What is taken as the end of a remote agent, and what is not.
#include "peer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>

#include "support/eventually.h"
#include "support/raw_listener.h"

namespace p2p::nixl {
namespace {

using namespace std::chrono_literals;
using p2p::testing::eventually;
using p2p::testing::RawListener;
using p2p::testing::RawPeer;
using ::testing::HasSubstr;

class PeerTest : public ::testing::Test {
 protected:
  ~PeerTest() override {
    if (peer_) peer_->leave();
  }

  /// Dials where the raw peer listens.
  void dial(Incarnation expected = RawPeer::kIncarnation) {
    const ConnInfo info{.address = "127.0.0.1", .port = listener_.port(), .incarnation = expected};
    const Peer::Timing timing{.connect = 3s, .keepalive = 2s};  // time for a handshake on a busy machine
    peer_ = std::make_shared<Peer>(endpoint_, "there", info, timing);
    EXPECT_TRUE(peer_->link());
  }

  /// New work dials it once more.
  bool is_dialled_again() {
    return eventually([&] {
      const auto link = peer_->link();
      return link && link->number == 2;
    });
  }

  static Endpoint make_endpoint() {
    Options options;
    options.listen_address = "127.0.0.1";
    options.transports = {"tcp"};
    return Endpoint::create(options).value();
  }

  RawListener listener_;
  Endpoint endpoint_ = make_endpoint();
  std::shared_ptr<Peer> peer_;
};

// As on a busy machine.
TEST_F(PeerTest, OneWithWhichNoChannelCameUpInTimeLives) {
  dial();
  RawPeer slow = listener_.accept();
  ASSERT_TRUE(slow.shake_hands(Role::kAcceptor, {"tcp"}));
  EXPECT_TRUE(is_dialled_again());
}

TEST_F(PeerTest, OneWithWhichNoTransportWorksLives) {
  dial();
  RawPeer other = listener_.accept();
  ASSERT_TRUE(other.shake_hands(Role::kAcceptor, {"none"}));
  EXPECT_TRUE(is_dialled_again());
}

TEST_F(PeerTest, AnotherProcessIsTheEndEvenIfNoTransportWorks) {
  dial(RawPeer::kIncarnation + 1);
  RawPeer other = listener_.accept();
  ASSERT_TRUE(other.shake_hands(Role::kAcceptor, {"none"}));
  ASSERT_TRUE(eventually([&] { return !peer_->link(); }));
  EXPECT_THAT(peer_->link().error().message, HasSubstr("another process"));
}

}  // namespace
}  // namespace p2p::nixl
