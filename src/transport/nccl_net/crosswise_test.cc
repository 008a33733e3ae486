// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Peers whose channels belong to different NICs, as they do where each has memory on other GPUs.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/devices.h"
#include "transport/nccl_net/nccl_net.h"

namespace p2p::nccl_net::crosswise_test {
namespace {

using Clock = std::chrono::steady_clock;

/// An interface besides loopback that is up and has an IPv4 address; empty: there is none.
std::string another_interface() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return "";
  std::string name;
  for (const ifaddrs* each = list; each != nullptr && name.empty(); each = each->ifa_next) {
    const bool usable = each->ifa_addr != nullptr && each->ifa_addr->sa_family == AF_INET &&
                        (each->ifa_flags & IFF_UP) != 0 && (each->ifa_flags & IFF_LOOPBACK) == 0;
    if (usable) name = each->ifa_name;
  }
  ::freeifaddrs(list);
  return name;
}

std::string text_of(const sockaddr_in& address) {
  std::array<char, INET_ADDRSTRLEN> text{};
  return ::inet_ntop(AF_INET, &address.sin_addr, text.data(), text.size());
}

/// The addresses of both ends of each connection of this process.
std::set<std::pair<std::string, std::string>> connections() {
  std::set<std::pair<std::string, std::string>> found;
  for (int fd = 0; fd < 1024; ++fd) {
    sockaddr_in ours{}, theirs{};
    socklen_t size = sizeof ours;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&ours), &size) != 0 || ours.sin_family != AF_INET)
      continue;
    size = sizeof theirs;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&theirs), &size) != 0) continue;
    found.emplace(text_of(ours), text_of(theirs));
  }
  return found;
}

struct Wire : ControlLink {
  std::vector<std::vector<std::byte>> sent;
  void send(std::span<const std::byte> message) override {
    sent.emplace_back(message.begin(), message.end());
  }
};

struct Side {
  std::unique_ptr<Transport> transport;
  Wire wire;
  std::unique_ptr<Channel> channel;
  std::vector<Completion> completions;

  void open(Role role, std::size_t rail) {
    Options set;
    set.nccl_net.plugin = SOFTNET_PATH;
    transport = make(set, test_devices(set));
    ASSERT_TRUE(transport->probe()) << transport->probe().error().message;
    const std::vector<Rail> rails = transport->rails({});
    ASSERT_EQ(rails.size(), 2U);
    ChannelSetup setup{.role = role, .rail = rails[rail], .control = &wire};
    setup.secret.fill(std::byte{7});
    auto opened = transport->open_channel(setup);
    ASSERT_TRUE(opened) << opened.error().message;
    channel = std::move(*opened);
  }

  void hear(Wire& other) {
    for (const auto& message : other.sent) static_cast<void>(channel->on_control(message));
    other.sent.clear();
  }
};

TEST(Crosswise, EachConnectionStaysInTheNetworkOfItsNic) {
  const std::string other = another_interface();
  if (other.empty()) GTEST_SKIP() << "needs an interface besides loopback";
  ::setenv("SOFTNET_INTERFACES", ("lo," + other).c_str(), 1);
  Side left, right;
  left.open(Role::kConnector, 0);
  right.open(Role::kAcceptor, 1);
  ASSERT_TRUE(left.channel->connect(right.channel->address()));
  ASSERT_TRUE(right.channel->connect(left.channel->address()));
  const auto end = Clock::now() + std::chrono::seconds(30);
  const auto ready = [](const Side& side) { return side.channel->state() == ChannelState::kReady; };
  while (!(ready(left) && ready(right)) && Clock::now() < end) {
    left.hear(right.wire);
    right.hear(left.wire);
    left.channel->progress(left.completions);
    right.channel->progress(right.completions);
  }
  ASSERT_TRUE(ready(left) && ready(right)) << left.channel->error().message << right.channel->error().message;
  const auto found = connections();
  EXPECT_EQ(found.size(), 2U) << "one in the network of each NIC";
  for (const auto& [ours, theirs] : found) EXPECT_EQ(ours, theirs);
}

}  // namespace
}  // namespace p2p::nccl_net::crosswise_test
