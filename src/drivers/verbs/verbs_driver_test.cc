// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "drivers/verbs/completion_queue.h"
#include "drivers/verbs/device.h"
#include "drivers/verbs/library.h"
#include "drivers/verbs/memory.h"
#include "drivers/verbs/queue_pair.h"
#include "drivers/verbs/testing/fake_provider.h"

namespace p2p::verbs {
namespace {

using testing::FakeProvider;

bool readable(int fd) {
  pollfd poll{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&poll, 1, 0) == 1;
}

// With the library and without, with devices and without: an answer or a reason.
TEST(VerbsLibrary, SaysWhatThisMachineHas) {
  const auto library = load_library();
  if (!library) {
    EXPECT_EQ(library.error().code, ErrorCode::kUnavailable);
    EXPECT_FALSE(library.error().message.empty());
    return;
  }
  const auto names = Device::list(**library);
  if (!names) {
    EXPECT_FALSE(names.error().message.empty());
    return;
  }
  for (const std::string& name : *names) EXPECT_FALSE(name.empty());
  const auto none = Device::open(**library, "no such device");
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().message.find("no such device"), std::string::npos) << none.error().message;
}

class VerbsDevice : public ::testing::Test {
 protected:
  void SetUp() override { device_ = Device::open(provider_.library(), "fake1").value(); }

  FakeProvider provider_{{.devices = 2, .requests = 300, .pieces = 8, .reads = 12}};
  std::shared_ptr<Device> device_;
};

TEST_F(VerbsDevice, ListsAndLimits) {
  EXPECT_EQ(Device::list(provider_.library()).value(), (std::vector<std::string>{"fake0", "fake1"}));
  EXPECT_EQ(device_->limits().requests, 300U);
  EXPECT_EQ(device_->limits().pieces, 8U);
  EXPECT_EQ(device_->limits().reads_out, 12U);
  EXPECT_EQ(Device::open(provider_.library(), "fake7").error().code, ErrorCode::kNotFound);
}

TEST_F(VerbsDevice, PortWithItsAddresses) {
  const Port port = device_->port(1).value();
  EXPECT_EQ(port.name(), "fake1:1");
  EXPECT_TRUE(port.active && port.ethernet);
  EXPECT_EQ(port.mtu, 4096U);
  EXPECT_DOUBLE_EQ(port.gigabits, 100);
  ASSERT_EQ(port.gids.size(), 4U);
  EXPECT_EQ(port.gids[1].text(), "fe80::2");
  EXPECT_FALSE(port.gids[1].is_ipv4());
  EXPECT_EQ(port.gids[3].text(), "10.0.1.1");
  EXPECT_TRUE(port.gids[3].is_ipv4());
  EXPECT_EQ(port.gids[3].kind, GidKind::kRoceV2);
  EXPECT_EQ(port.gids[2].kind, GidKind::kRoceV1);
  const auto missing = device_->port(2);
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message.find("fake1:2"), std::string::npos) << missing.error().message;
}

TEST_F(VerbsDevice, EventsReachAllWhoWatch) {
  const auto first = device_->watch().value();
  const auto second = device_->watch().value();
  EXPECT_FALSE(readable(device_->event_fd()));
  provider_.set_port(1, false);
  provider_.set_port(0, false);  // another device's
  EXPECT_TRUE(readable(device_->event_fd()));
  device_->fetch_events();
  EXPECT_FALSE(readable(device_->event_fd()));
  for (const auto& watch : {first, second}) {
    EXPECT_TRUE(readable(watch->fd()));
    const auto events = watch->take();
    ASSERT_EQ(events.size(), 1U);
    EXPECT_EQ(events[0].kind, EventKind::kPortDown);
    EXPECT_EQ(events[0].port, 1U);
    EXPECT_FALSE(readable(watch->fd()));
    EXPECT_TRUE(watch->take().empty());
  }
  EXPECT_FALSE(device_->port(1)->active);
}

TEST_F(VerbsDevice, ArmedQueueIsReadableAtTheNextCompletion) {
  const auto queue = CompletionQueue::open(device_, 64).value();
  const auto left = QueuePair::open(device_, *queue, 1, {.requests = 8, .receives = 8}).value();
  const auto right = QueuePair::open(device_, *queue, 1, {.requests = 8, .receives = 8}).value();
  ASSERT_TRUE(left->connect({.peer_number = right->number()}));
  ASSERT_TRUE(right->connect({.peer_number = left->number()}));
  ASSERT_TRUE(right->post_receive(5));
  ASSERT_TRUE(left->post_word(6, 0x1234));
  EXPECT_FALSE(readable(queue->fd())) << "nobody asked to be told";
  std::array<WorkCompletion, 4> completions;
  ASSERT_EQ(queue->poll(completions).value(), 2U);
  const auto word = std::ranges::find_if(completions, [](const auto& one) { return one.received; });
  ASSERT_NE(word, completions.end());
  EXPECT_EQ(word->id, 5U);
  EXPECT_EQ(word->immediate, 0x1234U);
  ASSERT_TRUE(queue->arm());
  EXPECT_FALSE(queue->take_event());
  ASSERT_TRUE(right->post_receive(7));
  ASSERT_TRUE(left->post_word(8, 0x5678));
  EXPECT_TRUE(readable(queue->fd()));
  EXPECT_TRUE(queue->take_event());
  EXPECT_FALSE(readable(queue->fd()));
}

TEST_F(VerbsDevice, AWordWaitsForItsReceive) {
  const auto queue = CompletionQueue::open(device_, 64).value();
  const auto left = QueuePair::open(device_, *queue, 1, {.requests = 8, .receives = 8}).value();
  const auto right = QueuePair::open(device_, *queue, 1, {.requests = 8, .receives = 8}).value();
  ASSERT_TRUE(left->connect({.peer_number = right->number()}));
  ASSERT_TRUE(right->connect({.peer_number = left->number()}));
  ASSERT_TRUE(left->post_word(1, 9));
  std::array<WorkCompletion, 4> completions;
  EXPECT_EQ(queue->poll(completions).value(), 0U);
  ASSERT_TRUE(right->post_receive(2));
  EXPECT_EQ(queue->poll(completions).value(), 2U);
}

TEST_F(VerbsDevice, StoppedPairFlushesAndRefusesAnotherPath) {
  const auto queue = CompletionQueue::open(device_, 64).value();
  const auto pair = QueuePair::open(device_, *queue, 1, {.requests = 8, .receives = 8}).value();
  ASSERT_TRUE(pair->post_receive(3));
  ASSERT_TRUE(pair->stop());
  std::array<WorkCompletion, 4> completions;
  ASSERT_EQ(queue->poll(completions).value(), 1U);
  EXPECT_EQ(completions[0].outcome, Outcome::kFlushed);
  EXPECT_EQ(completions[0].id, 3U);
  const Status again = pair->connect({.peer_number = 1});
  ASSERT_FALSE(again);
  EXPECT_NE(again.error().message.find("fake1:1"), std::string::npos) << again.error().message;
}

TEST_F(VerbsDevice, DmaBuffersNeedTheLibrarysFunction) {
  std::array<std::byte, 64> memory{};
  const auto region = MemoryRegion::add(device_, DmaBuffer{}, memory.data(), memory.size());
  ASSERT_FALSE(region);
  EXPECT_EQ(region.error().code, ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace p2p::verbs
