// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// A long link between two network namespaces: makes an interface `long` in each and carries the packets
// between them, with what a profile says (link_way.h):
//
//   p2p_long_link LEFT RIGHT SEED [PROFILE]
//
// Says "ready", and takes another profile from each line that it reads; answers with what it has counted
// until then, or with what is wrong. Ends with its input. Needs root and /dev/net/tun.
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <string>
#include <utility>

#include "base/unique_fd.h"
#include "support/link_way.h"

namespace p2p::testing {
namespace {

using Clock = std::chrono::steady_clock;
using Time = LinkWay::Time;

// Packets may come so much later than they should: a wake-up for each would cost more than the packet.
constexpr std::chrono::microseconds kGrain{100};
// So many are read from one side before the other has its turn.
constexpr int kTurn = 64;
constexpr std::size_t kMaxPacket = 65536;

Time now() { return Clock::now().time_since_epoch(); }

/// The device's packets come from it and go to it, until it is closed. None: errno says why.
UniqueFd open_device(const std::string& host) {
  const UniqueFd space(::open(("/run/netns/" + host).c_str(), O_RDONLY | O_CLOEXEC));
  if (!space || ::setns(space.get(), CLONE_NEWNET) != 0) return {};
  UniqueFd device(::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC));
  ifreq request{};
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  std::strcpy(request.ifr_name, "long");
  if (!device || ::ioctl(device.get(), TUNSETIFF, &request) != 0) return {};
  return device;
}

class Link {
 public:
  Link(std::array<UniqueFd, 2> ends, const LinkProfile& profile, std::uint64_t seed)
      : ends_(std::move(ends)),
        profile_(profile),
        ways_{LinkWay(profile, seed), LinkWay(profile, seed + 1)} {}

  /// Until the input ends.
  void run() {
    while (wait()) {
      for (std::size_t side = 0; side != 2; ++side) carry(side);
    }
  }

 private:
  // False at the end of the input.
  bool wait() {
    std::array<pollfd, 3> watched{{{ends_[0].get(), POLLIN, 0}, {ends_[1].get(), POLLIN, 0}, {0, POLLIN, 0}}};
    Time due = Time::max();
    for (const LinkWay& way : ways_) due = std::min(due, way.next().value_or(Time::max()));
    const Time left = due == Time::max() ? std::chrono::seconds(1) : std::max(due - now(), Time(kGrain));
    const timespec limit{left / std::chrono::seconds(1), (left % std::chrono::seconds(1)).count()};
    if (::ppoll(watched.data(), watched.size(), &limit, nullptr) < 0) return errno == EINTR;
    return watched[2].revents == 0 || take_profile();
  }

  // From `side` to its way, and from the way to the other side.
  void carry(std::size_t side) {
    for (int i = 0; i != kTurn; ++i) {
      const ssize_t size = ::read(ends_[side].get(), piece_.data(), piece_.size());
      if (size <= 0) break;
      ways_[side].take({piece_.data(), piece_.data() + size}, now());
    }
    while (const auto packet = ways_[side].give(now())) {
      // One that the host does not take is lost, as anywhere.
      [[maybe_unused]] const ssize_t taken = ::write(ends_[1 - side].get(), packet->data(), packet->size());
    }
  }

  bool take_profile() {
    std::array<char, 4096> said;
    const ssize_t size = ::read(STDIN_FILENO, said.data(), said.size());
    if (size <= 0) return false;
    come_.append(said.data(), static_cast<std::size_t>(size));
    for (std::size_t end = 0; (end = come_.find('\n')) != std::string::npos; come_.erase(0, end + 1)) {
      const auto profile = LinkProfile::parse(come_.substr(0, end), profile_);
      if (profile) {
        profile_ = *profile;
        for (LinkWay& way : ways_) way.change(profile_);
      }
      fmt::print("{}\n", profile ? counted() : "error " + profile.error().message);
      std::fflush(stdout);
    }
    return true;
  }

  std::string counted() const {
    LinkWay::Counts sum;
    for (const LinkWay& way : ways_) {
      sum.taken += way.counts().taken;
      sum.lost += way.counts().lost;
      sum.dropped += way.counts().dropped;
      sum.doubled += way.counts().doubled;
      sum.late += way.counts().late;
    }
    return fmt::format("{} packets {} lost {} dropped {} doubled {} late", sum.taken, sum.lost, sum.dropped,
                       sum.doubled, sum.late);
  }

  std::array<UniqueFd, 2> ends_;
  LinkProfile profile_;
  std::array<LinkWay, 2> ways_;
  std::array<std::byte, kMaxPacket> piece_{};
  std::string come_;
};

// A cable does not wait for a core: where the machine is busy, a link that did would be dark for seconds.
void go_first() {
  const sched_param least{::sched_get_priority_min(SCHED_FIFO)};
  if (::sched_setscheduler(0, SCHED_FIFO, &least) != 0) std::perror("run before other processes");
}

int run(int count, char** words) {
  if (count < 4 || count > 5) {
    return std::fprintf(stderr, "usage: p2p_long_link LEFT RIGHT SEED [PROFILE]\n"), 2;
  }
  const auto profile = LinkProfile::parse(count > 4 ? words[4] : "", {});
  if (!profile) return std::fprintf(stderr, "%s\n", profile.error().message.c_str()), 2;
  std::array<UniqueFd, 2> ends;
  for (std::size_t side = 0; side != 2; ++side) {
    const char* const host = words[1 + side];
    ends[side] = open_device(host);
    if (!ends[side]) {
      return std::fprintf(stderr, "make the end of a link in %s: %s\n", host, std::strerror(errno)), 1;
    }
  }
  go_first();
  fmt::print("ready\n");
  std::fflush(stdout);
  Link(std::move(ends), *profile, std::stoull(words[3])).run();
  return 0;
}

}  // namespace
}  // namespace p2p::testing

int main(int count, char** words) { return p2p::testing::run(count, words); }
