// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Several channels of one transport that hand what they receive to one unpacker, each moved by a thread of
// its own, over softnet with its pool in host memory and fragments of any size and order.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <memory>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "support/devices.h"
#include "transport/nccl_net/nccl_net.h"
#include "transport/nccl_net/protocol.h"

namespace p2p::nccl_net::unpack_channels_test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kChannels = 3;
constexpr std::size_t kBytes = std::size_t{3} << 20;

/// What one channel tells its twin.
class Link final : public ControlLink {
 public:
  void send(std::span<const std::byte> message) override {
    const MutexLock lock(mutex_);
    sent_.emplace_back(message.begin(), message.end());
  }
  std::deque<Bytes> take() {
    const MutexLock lock(mutex_);
    return std::exchange(sent_, {});
  }

 private:
  Mutex mutex_;
  std::deque<Bytes> sent_ P2P_GUARDED_BY(mutex_);
};

struct End {
  Link link;
  std::unique_ptr<Channel> channel;
  std::vector<Completion> completions;
};

/// One process' part: a transport, its memory, a channel to each of the peer's.
struct Side {
  std::unique_ptr<Transport> transport;
  std::vector<std::byte> memory = std::vector<std::byte>(kChannels * kBytes);
  RegionInfo info;
  std::shared_ptr<Registration> registration;
  std::unique_ptr<RemoteKey> peer;  // the other side's memory
  std::array<End, kChannels> ends;

  void open(Role role, const NcclNetOptions& set) {
    Options options;
    options.nccl_net = set;
    options.nccl_net.plugin = SOFTNET_PATH;
    options.nccl_net.host_pool = true;
    transport = make(options, test_devices(options));
    ASSERT_TRUE(transport->probe()) << transport->probe().error().message;
    info = {.id = RegionId{1}, .base = memory.data(), .size = memory.size()};
    registration = *transport->register_memory(info);
    for (End& end : ends) {
      ChannelSetup setup{.role = role, .rail = transport->rails({}).front(), .control = &end.link};
      setup.secret.fill(std::byte{7});
      auto opened = transport->open_channel(setup);
      ASSERT_TRUE(opened) << opened.error().message;
      end.channel = std::move(*opened);
    }
  }
};

/// Announces one byte more than is sent.
Bytes lie_about(const Bytes& packed) {
  if (packed.front() != kPackedMessages) return packed;
  Bytes lies{kPackedMessages};
  auto messages = unpack(ByteView(packed).subspan(1));
  for (Message& message : *messages) {
    if (Chunk* const chunk = std::get_if<Chunk>(&message); chunk != nullptr && !chunk->last) {
      ++chunk->size;
      ++chunk->ranges.back().size;
    }
    pack(lies, message);
  }
  return lies;
}

class UnpackChannelsTest : public ::testing::Test {
 protected:
  void connect(const NcclNetOptions& left = {}, const NcclNetOptions& right = {}) {
    ::setenv("SOFTNET_INTERFACES", "lo", 1);
    ::setenv("SOFTNET_UNPACK", "1", 1);
    ::setenv("SOFTNET_FRAGMENTS", "random", 1);
    left_.open(Role::kConnector, left);
    right_.open(Role::kAcceptor, right);
    std::iota(reinterpret_cast<unsigned char*>(left_.memory.data()),
              reinterpret_cast<unsigned char*>(left_.memory.data()) + left_.memory.size(), 0);
    left_.peer = *left_.transport->import_region(right_.info, {});
    for (std::size_t i = 0; i < kChannels; ++i) {
      ASSERT_TRUE(left_.ends[i].channel->connect(right_.ends[i].channel->address()));
      ASSERT_TRUE(right_.ends[i].channel->connect(left_.ends[i].channel->address()));
      threads_.emplace_back([this, i] { run(i); });
    }
    ASSERT_TRUE(step_until([&] {
      return std::ranges::all_of(left_.ends,
                                 [](const End& end) { return end.channel->state() == ChannelState::kReady; });
    }));
  }
  void TearDown() override { stop(); }
  void stop() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  /// True if messages had come.
  bool step(End& end, End& twin) {
    const std::deque<Bytes> messages = twin.link.take();
    const bool lies = lies_ && &end == &right_.ends[0];
    for (const Bytes& message : messages) {
      static_cast<void>(end.channel->on_control(lies ? lie_about(message) : message));
    }
    end.channel->progress(end.completions);
    return !messages.empty();
  }
  void run(std::size_t i) {
    End& end = right_.ends[i];
    while (!stop_) {
      const bool heard = step(end, left_.ends[i]);
      if (i != 0 || !heard || !dies_) continue;
      end.channel.reset();
      return;
    }
  }
  template <class Condition>
  bool step_until(Condition&& condition) {
    const auto until = Clock::now() + std::chrono::seconds(60);
    while (!condition() && Clock::now() < until) {
      for (std::size_t i = 0; i < kChannels; ++i) step(left_.ends[i], right_.ends[i]);
    }
    return condition();
  }

  /// Each channel writes or reads its part of the memory in scattered pieces, in one batch after the other.
  void post_all(Operation operation) {
    for (std::size_t i = 0; i < kChannels; ++i) {
      std::vector<Segment>& segments = segments_[i];
      segments.clear();
      std::size_t at = i * kBytes;
      for (std::size_t size = 1; at < (i + 1) * kBytes;
           at += segments.back().size, size = size * 3 % 200003) {
        const std::size_t bytes = std::min(size, (i + 1) * kBytes - at);
        segments.push_back({left_.memory.data() + at,
                            reinterpret_cast<std::uint64_t>(right_.memory.data()) + at, bytes,
                            left_.registration.get(), left_.peer.get()});
      }
      ASSERT_TRUE(left_.ends[i].channel->post(
          {.id = BatchId{1}, .operation = operation, .segments = segments, .bytes = kBytes}));
    }
    ASSERT_TRUE(step_until([&] {
      return std::ranges::all_of(left_.ends, [](const End& end) { return !end.completions.empty(); });
    }));
  }
  bool same(std::size_t i) const {
    return std::equal(left_.memory.begin() + static_cast<std::ptrdiff_t>(i * kBytes),
                      left_.memory.begin() + static_cast<std::ptrdiff_t>((i + 1) * kBytes),
                      right_.memory.begin() + static_cast<std::ptrdiff_t>(i * kBytes));
  }
  void expect_all_right() {
    for (std::size_t i = 0; i < kChannels; ++i) {
      ASSERT_EQ(left_.ends[i].completions.size(), 1U);
      const Status& status = left_.ends[i].completions[0].status;
      EXPECT_TRUE(status) << status.error().message;
      EXPECT_TRUE(same(i)) << "channel " << i;
      left_.ends[i].completions.clear();
    }
  }

  Side left_, right_;
  std::array<std::vector<Segment>, kChannels> segments_;
  std::vector<std::thread> threads_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> lies_{false};  // the peer of the first channel
  std::atomic<bool> dies_{false};  // the first channel of the right side
};

TEST_F(UnpackChannelsTest, AllOfThemAtOnce) {
  connect();
  post_all(Operation::kWrite);
  expect_all_right();
  left_.memory.assign(left_.memory.size(), std::byte{});
  post_all(Operation::kRead);
  expect_all_right();
  EXPECT_NE(left_.memory, std::vector<std::byte>(left_.memory.size()));
}

TEST_F(UnpackChannelsTest, AReceiveThatIsWrongFailsItsOwnChannelAlone) {
  connect();
  lies_ = true;
  post_all(Operation::kWrite);
  stop();
  EXPECT_EQ(right_.ends[0].channel->state(), ChannelState::kFailed);
  EXPECT_EQ(right_.ends[0].channel->error().code, ErrorCode::kProtocol)
      << right_.ends[0].channel->error().message;
  EXPECT_FALSE(left_.ends[0].completions[0].status);
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
    EXPECT_TRUE(left_.ends[i].completions[0].status);
    EXPECT_TRUE(same(i)) << "channel " << i;
    EXPECT_EQ(right_.ends[i].channel->state(), ChannelState::kReady);
  }
}

TEST_F(UnpackChannelsTest, AChannelThatEndsLeavesTheOthersAlone) {
  connect();
  dies_ = true;  // once the write is announced to it, with receives posted and perhaps being unpacked
  post_all(Operation::kWrite);
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
    EXPECT_TRUE(left_.ends[i].completions[0].status);
    EXPECT_TRUE(same(i)) << "channel " << i;
  }
}

TEST_F(UnpackChannelsTest, TheSmallerChunkAndAnyWindowWork) {
  connect({.chunk_bytes = 4096, .window = 1}, {.chunk_bytes = 300001, .window = 7});
  post_all(Operation::kWrite);
  expect_all_right();
  left_.memory.assign(left_.memory.size(), std::byte{});
  post_all(Operation::kRead);
  expect_all_right();
}

TEST_F(UnpackChannelsTest, ChunksOfFourMebibytes) {
  connect({.chunk_bytes = std::size_t{4} << 20}, {.chunk_bytes = std::size_t{4} << 20});
  post_all(Operation::kWrite);
  expect_all_right();
}

}  // namespace
}  // namespace p2p::nccl_net::unpack_channels_test
