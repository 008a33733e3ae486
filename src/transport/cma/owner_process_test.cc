// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Copies by the owner between two processes, one of which ends, stands still, or takes its memory back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/underlying.h"
#include "support/eventually.h"
#include "support/process.h"
#include "transport/cma/owner_copies_testing.h"

namespace p2p::cma {
namespace {

using p2p::testing::eventually;
using p2p::testing::Process;

constexpr std::size_t kAreas = 8;
constexpr std::size_t kArea = kSpreadBytes;  // several at once over one channel
constexpr std::size_t kPiece = kArea / kOwnerPieces;
constexpr std::size_t kRounds = 24;

/// Memory that both processes see at one address: what a peer wrote there can be looked at from here.
class SharedMemory {
 public:
  SharedMemory()
      : data_(::mmap(nullptr, kAreas * kArea, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {}
  ~SharedMemory() { ::munmap(data_, kAreas * kArea); }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  std::byte* area(std::size_t number) const { return data() + number * kArea; }
  Bytes copy() const { return {data(), data() + kAreas * kArea}; }

 private:
  void* data_;
};

bool receive(int socket, Bytes& message) {
  pollfd ready{.fd = socket, .events = POLLIN, .revents = 0};
  if (::poll(&ready, 1, 20000) != 1) return false;
  message.resize(4096);
  const ssize_t size = ::recv(socket, message.data(), message.size(), 0);
  message.resize(static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  return size > 0;
}

bool send(int socket, ByteView message) {
  return ::send(socket, message.data(), message.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(message.size());
}

/// The channel of this process, ready; null if it does not come to that.
std::unique_ptr<Channel> bring_up(Role role, int socket, std::shared_ptr<const RegistrationTable> regions,
                                  const std::shared_ptr<device::StagingPool>& pool) {
  auto channel = open_channel(role, std::move(regions), pool);
  Bytes address;
  std::vector<Completion> none;
  const bool dials = role == Role::kConnector;
  const bool met = (!dials || send(socket, channel->address())) && receive(socket, address) &&
                   channel->connect(address) && (dials || send(socket, channel->address()));
  const bool up = met && eventually([&] {
                    channel->progress(none);
                    return channel->state() != ChannelState::kConnecting;
                  });
  return up && channel->state() == ChannelState::kReady ? std::move(channel) : nullptr;
}

/// A process that was forked for one side.
class Side {
 public:
  explicit Side(const std::function<void(int socket)>& run) {
    std::array<int, 2> sockets{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets.data()), 0);
    process_.emplace(*Process::forked([&] {
      ::close(sockets[0]);
      run(sockets[1]);
      return 0;
    }));
    ::close(sockets[1]);
    socket_ = sockets[0];
  }
  ~Side() { ::close(socket_); }
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;

  int socket() const { return socket_; }
  Process& process() { return *process_; }

 private:
  std::optional<Process> process_;
  int socket_ = -1;
};

/// Serves its peer until that is gone.
void own(int socket, const RegionInfo& info) {
  const auto regions = std::make_shared<RegistrationTable>();
  regions->add(std::make_shared<Registration>(info));
  const auto channel = bring_up(Role::kAcceptor, socket, regions, plain_pool());
  std::vector<Completion> none;
  while (channel && channel->state() == ChannelState::kReady && ::getppid() != 1) channel->progress(none);
}

/// Writes areas, as many at once as the channel takes, each with a pattern of its own.
class Writer {
 public:
  Writer(Channel& channel, const RegionInfo& info) : channel_(channel), key_(info) {}

  /// False: the channel takes no more now.
  bool post() {
    const std::size_t area = next_ % kAreas;
    const auto there = reinterpret_cast<std::uint64_t>(key_.info().base) + area * kArea;
    if (prepared_ == next_) {
      const auto begin = patterns_.begin() + ++prepared_ % kPatterns;
      std::copy(begin, begin + kArea, mine_.begin() + static_cast<std::ptrdiff_t>(area * kArea));
      lists_[area].clear();
      for (std::size_t at = 0; at != kArea; at += kPiece) {
        lists_[area].push_back({mine_.data() + area * kArea + at, there + at, kPiece, &local_, &key_});
      }
    }
    if (!channel_.post({.id = BatchId{area}, .segments = lists_[area], .bytes = kArea})) return false;
    ++next_;
    ++under_way_;
    return true;
  }

  /// True once nothing is under way.
  bool progress() {
    std::vector<Completion> done;
    channel_.progress(done);
    under_way_ -= done.size();
    for (Completion& each : done) outcomes_[to_underlying(each.id)] = std::move(each.status);
    return under_way_ == 0;
  }

  std::uint64_t posted() const { return next_; }
  const Status& outcome(std::size_t area) const { return outcomes_[area]; }
  const std::byte* area(std::size_t number) const { return mine_.data() + number * kArea; }

 private:
  // One long pattern, of which each area begins at another byte: to make them takes longer than to move them.
  static constexpr std::uint32_t kPatterns = 4096;

  Channel& channel_;
  const RemoteKey key_;
  const Bytes patterns_ = pattern(kArea + kPatterns, 1);
  Bytes mine_ = Bytes(kAreas * kArea);
  const Registration local_{as_device_memory(mine_)};
  std::array<std::vector<Segment>, kAreas> lists_;
  std::array<Status, kAreas> outcomes_{};
  std::uint32_t next_ = 0;
  std::uint32_t prepared_ = 0;  // `next_`, or one more if that is filled in already
  std::size_t under_way_ = 0;
};

class CmaOwnerProcess : public ::testing::Test {
 protected:
  const SharedMemory memory_;
  const RegionInfo info_ = info_of(1, memory_.data(), kAreas* kArea);
  std::mt19937 random_{7};

  /// After some work that differs from round to round.
  void work(Writer& writer) {
    const auto posts = random_() % kAreas + 1;
    const auto turns = random_() % 50;
    while (writer.posted() != posts) {
      if (!writer.post()) writer.progress();
    }
    for (unsigned turn = 0; turn != turns; ++turn) writer.progress();
  }
};

TEST_F(CmaOwnerProcess, AnOwnerThatIsKilledEndsWhatItWasAskedForAndNothingLandsAfter) {
  for (std::size_t round = 0; round != kRounds; ++round) {
    SCOPED_TRACE(round);
    std::fill_n(memory_.data(), kAreas * kArea, std::byte{0xcc});
    Side owner([&](int socket) { own(socket, info_); });
    const auto channel =
        bring_up(Role::kConnector, owner.socket(), std::make_shared<RegistrationTable>(), plain_pool());
    ASSERT_TRUE(channel);
    Writer writer(*channel, info_);
    work(writer);
    owner.process().kill_now();
    ASSERT_TRUE(eventually([&] { return writer.progress(); }));
    for (std::size_t area = 0; area != writer.posted(); ++area) {
      const Status& outcome = writer.outcome(area);
      if (outcome) {
        EXPECT_TRUE(std::equal(writer.area(area), writer.area(area) + kArea, memory_.area(area))) << area;
      } else {
        EXPECT_EQ(outcome.error().code, ErrorCode::kPeerGone) << outcome.error().message;
      }
    }
    const bool failed = eventually([&] {
      writer.progress();
      return channel->state() == ChannelState::kFailed;
    });
    EXPECT_TRUE(failed);
  }
}

/// The first byte of an area that is neither what it was before nor what was written, if something was;
/// kArea: none.
std::size_t stray_byte(const std::byte* area, const std::byte* written) {
  std::size_t i = 0;
  while (i != kArea && (area[i] == std::byte{0xcc} || (written != nullptr && area[i] == written[i]))) ++i;
  return i;
}

// Slots that are free again are filled with what must not land.
TEST_F(CmaOwnerProcess, WhoLeavesAnOwnerThatStandsStillGivesItNothingElseToCopy) {
  for (std::size_t round = 0; round != kRounds; ++round) {
    SCOPED_TRACE(round);
    std::fill_n(memory_.data(), kAreas * kArea, std::byte{0xcc});
    Side owner([&](int socket) { own(socket, info_); });
    const auto pool = plain_pool();
    auto channel = bring_up(Role::kConnector, owner.socket(), std::make_shared<RegistrationTable>(), pool);
    ASSERT_TRUE(channel);
    Writer writer(*channel, info_);
    work(writer);
    owner.process().stop();
    const auto end = dynamic_cast<LeavesPeer&>(*channel).leave().end;
    ASSERT_TRUE(end);
    writer.progress();
    channel.reset();
    std::vector<std::byte*> free;
    while (auto* const slot = pool->take(false).value()) {
      std::fill_n(slot, kMaxBatchBytes, std::byte{0xee});
      free.push_back(slot);
    }
    EXPECT_FALSE(end->over());
    owner.process().go_on();
    pollfd told{.fd = end->fd(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(::poll(&told, 1, 20000), 1);
    EXPECT_TRUE(end->over());
    const Bytes left = memory_.copy();
    owner.process().kill_now();
    EXPECT_EQ(memory_.copy(), left);
    for (std::size_t area = 0; area != kAreas; ++area) {
      const std::byte* const written = area < writer.posted() ? writer.area(area) : nullptr;
      ASSERT_EQ(stray_byte(left.data() + area * kArea, written), kArea) << "in area " << area;
    }
    for (auto* const slot : free) pool->give_back(slot);
  }
}

TEST_F(CmaOwnerProcess, AWriterThatIsKilledLeavesTheOwnersMemoryAlone) {
  for (std::size_t round = 0; round != kRounds; ++round) {
    SCOPED_TRACE(round);
    Side other([&](int socket) {
      const auto channel =
          bring_up(Role::kConnector, socket, std::make_shared<RegistrationTable>(), plain_pool());
      if (!channel) return;
      Writer writer(*channel, info_);
      while (channel->state() == ChannelState::kReady && ::getppid() != 1) {
        if (!writer.post()) writer.progress();
      }
    });
    const auto regions = std::make_shared<RegistrationTable>();
    const auto registration = std::make_shared<Registration>(info_);
    regions->add(registration);
    const auto channel = bring_up(Role::kAcceptor, other.socket(), regions, plain_pool());
    ASSERT_TRUE(channel);
    std::vector<Completion> none;
    for (auto turns = random_() % 2000; turns != 0; --turns) channel->progress(none);
    other.process().kill_now();
    EXPECT_TRUE(eventually([&] {
      channel->progress(none);
      return channel->state() == ChannelState::kFailed;
    }));
    EXPECT_EQ(channel->error().code, ErrorCode::kPeerGone);
    regions->revoke(*registration);
    EXPECT_TRUE(registration->wait_unaccessed(std::chrono::steady_clock::now()));
  }
}

// The owner takes it back on one thread while its channel copies on another.
TEST_F(CmaOwnerProcess, NothingLandsInARegionThatWasTakenBack) {
  for (std::size_t round = 0; round != kRounds; ++round) {
    SCOPED_TRACE(round);
    Side other([&](int socket) {
      const auto channel =
          bring_up(Role::kConnector, socket, std::make_shared<RegistrationTable>(), plain_pool());
      if (!channel) return;
      Writer writer(*channel, info_);
      bool refused = false;
      // Each area was refused once: nothing that was asked for before is left.
      std::uint64_t refused_at = 0;
      while (channel->state() == ChannelState::kReady && ::getppid() != 1) {
        if (!writer.post()) writer.progress();
        for (std::size_t area = 0; area != kAreas && !refused; ++area) {
          refused = !writer.outcome(area) && writer.outcome(area).error().code == ErrorCode::kNotFound;
          refused_at = writer.posted();
        }
        if (refused && writer.posted() == refused_at + 2 * kAreas) send(socket, Bytes(1));
      }
    });
    const auto regions = std::make_shared<RegistrationTable>();
    const auto registration = std::make_shared<Registration>(info_);
    regions->add(registration);
    const auto channel = bring_up(Role::kAcceptor, other.socket(), regions, plain_pool());
    ASSERT_TRUE(channel);
    std::atomic<bool> stop{false};
    std::atomic<unsigned> turns{0};
    std::thread worker([&] {
      std::vector<Completion> none;
      while (!stop) {
        channel->progress(none);
        ++turns;
      }
    });
    const unsigned least = random_() % 500;
    EXPECT_TRUE(eventually([&] { return turns > least; }));
    regions->revoke(*registration);
    EXPECT_TRUE(registration->wait_unaccessed(std::chrono::steady_clock::now() + std::chrono::seconds(20)));
    std::fill_n(memory_.data(), kAreas * kArea, std::byte{0xee});
    Bytes told;
    EXPECT_TRUE(receive(other.socket(), told));
    stop = true;
    worker.join();
    EXPECT_TRUE(memory_.copy() == Bytes(kAreas * kArea, std::byte{0xee}));
  }
}

}  // namespace
}  // namespace p2p::cma
