// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// What transports are told of a session, between an endpoint and a raw peer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "support/sequence_ends.h"

namespace p2p::testing {
namespace {

using ::testing::ElementsAre;

/// What the last channel was told.
struct Told {
  Mutex mutex;
  ChannelSetup setup P2P_GUARDED_BY(mutex);
};

class Listener : public PlainTransport {
 public:
  explicit Listener(std::shared_ptr<Told> told)
      : PlainTransport("plain", Kind::kStays), told_(std::move(told)) {}

  Result<std::unique_ptr<Channel>> open_channel(const ChannelSetup& setup) override {
    const MutexLock lock(told_->mutex);
    told_->setup = setup;
    return PlainTransport::open_channel(setup);
  }

 private:
  const std::shared_ptr<Told> told_;
};

/// By whether the endpoint dials, or the peer.
class ChannelSetupTest : public SequenceTest, public ::testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    options_.listen_address = "127.0.0.1";
    const auto make = [told = told_](const Options&, const auto&) {
      return std::make_unique<Listener>(told);
    };
    const TransportRegistry registry{{PlainTransport::entry("near"), {"plain", make}}};
    endpoint_ = engine::Endpoint::create(options_, registry).value();
  }

  /// What channels of `plain` are told, by a peer that has these.
  ChannelSetup told_with(const std::vector<std::string>& transports) {
    const bool dialled = GetParam();
    if (dialled) static_cast<void>(endpoint_->connect("127.0.0.1", listener_.port(), 20s, std::nullopt));
    RawPeer peer = dialled ? listener_.accept() : RawPeer::dial(endpoint_->port());
    EXPECT_TRUE(peer.shake_hands(dialled ? Role::kAcceptor : Role::kConnector, transports));
    EXPECT_TRUE(bring_up(peer, "plain", dialled));
    const MutexLock lock(told_->mutex);
    return told_->setup;
  }

  const std::shared_ptr<Told> told_ = std::make_shared<Told>();
};
INSTANTIATE_TEST_SUITE_P(By, ChannelSetupTest, ::testing::Values(true, false),
                         [](const auto& one) { return one.param ? "endpoint" : "peer"; });

TEST_P(ChannelSetupTest, NamesTheTransportsOfBothSides) {
  EXPECT_THAT(told_with({"near", "plain"}).transports, ElementsAre("near", "plain"));
  EXPECT_THAT(told_with({"plain"}).transports, ElementsAre("plain"));
}

}  // namespace
}  // namespace p2p::testing
