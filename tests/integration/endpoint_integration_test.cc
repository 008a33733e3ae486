// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "support/hex.h"
#include "support/peer.h"

namespace p2p::testing::endpoint {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

Options on_loopback() { return EndpointPlan{}.options(); }

TEST(EndpointTest, PeersGetTheNoteOfTheCallOrElseThatOfTheEndpoint) {
  Endpoint left = Endpoint::create(on_loopback()).value();
  Endpoint right = Endpoint::create(on_loopback()).value();
  left.set_note("left");
  right.set_note("right");
  const auto meet = [&](std::optional<std::string> note) {
    const auto connection = left.connect(right.address(), right.port(), kLimit, std::move(note));
    const auto accepted = right.accept(kLimit);
    EXPECT_TRUE(is_ok(status_of(connection)));
    EXPECT_TRUE(is_ok(status_of(accepted)));
    return std::pair(connection ? connection->peer().note : "", accepted ? accepted->peer().note : "");
  };
  EXPECT_EQ(meet(std::nullopt), std::pair(std::string("right"), std::string("left")));
  EXPECT_EQ(meet("for this one"), std::pair(std::string("right"), std::string("for this one")));
  EXPECT_EQ(meet(""), std::pair(std::string("right"), std::string()));
  EXPECT_EQ(meet(std::nullopt), std::pair(std::string("right"), std::string("left")));
}

TEST(EndpointTest, APeerIsWaitedForWithoutBeingTaken) {
  Endpoint left = Endpoint::create(on_loopback()).value();
  Endpoint right = Endpoint::create(on_loopback()).value();
  EXPECT_EQ(right.wait_for_peer(0, std::chrono::nanoseconds::zero()), 0U);
  const auto wait_for_one = [&](std::uint64_t seen) {
    std::uint64_t told = seen;
    std::thread waiting([&] { told = right.wait_for_peer(seen, kLimit); });
    EXPECT_TRUE(is_ok(status_of(left.connect(right.address(), right.port(), kLimit))));
    waiting.join();
    return told;
  };
  EXPECT_EQ(wait_for_one(0), 1U);
  EXPECT_TRUE(is_ok(status_of(right.accept(std::chrono::nanoseconds::zero()))));
  EXPECT_EQ(wait_for_one(1), 2U) << "one that was taken counts on";
  EXPECT_EQ(right.wait_for_peer(0, kLimit), 2U);
  EXPECT_TRUE(is_ok(status_of(right.accept(std::chrono::nanoseconds::zero()))));
}

TEST(EndpointTest, APeerOfTheHostMayUseLoopbackWhicheverAddressIsAnnounced) {
  Options options;
  const auto announced = Endpoint::announced_address(options);
  ASSERT_TRUE(is_ok(status_of(announced)));
  if (announced->starts_with("127.") || *announced == "::1") GTEST_SKIP() << "there is no other address";
  Endpoint listening = Endpoint::create(options).value();
  Endpoint dialling = Endpoint::create(on_loopback()).value();
  EXPECT_EQ(listening.address(), *announced);
  const bool four = announced->find(':') == std::string::npos;
  for (const std::string& host : {*announced, std::string(four ? "127.0.0.1" : "::1")}) {
    EXPECT_TRUE(is_ok(status_of(dialling.connect(host, listening.port(), kLimit)))) << host;
    EXPECT_TRUE(is_ok(status_of(listening.accept(kLimit)))) << host;
  }
}

// A peer that stands still hears nothing of it; regions are not waited for either.
TEST(EndpointTest, ClosesBesideAStoppedPeerInTheTimeThatItIsGiven) {
  for (const char* const transport : {"tcp", "cma"}) {
    constexpr std::size_t kSize = std::size_t{64} << 20;
    Pair pair({.transport = transport, .keepalive = std::chrono::seconds(20)});
    const PeerRegion theirs = pair.peer.region(kSize);
    const RemoteSpan there{pair.connection.import_region(theirs.descriptor).value(),
                           theirs.descriptor.address, kSize};
    auto own = std::make_unique<OwnRegion>(pair.endpoint, kSize);
    pair.peer.number(fmt::format("import {} {}", pair.at_peer, to_hex(own->region.descriptor())));
    EXPECT_TRUE(
        is_ok(pair.connection.write(own->span(0, 4096), {there.region, there.address, 4096}).wait(kLimit)));
    pair.peer.process().stop();
    const auto start = std::chrono::steady_clock::now();
    const Transfer write = pair.connection.write(own->span(0, kSize), there);
    const Transfer receive = pair.connection.recv(own->span(0, 64));
    pair.endpoint.close(std::chrono::milliseconds(200));
    EXPECT_TRUE(write.done() && receive.done()) << transport;
    own.reset();
    const auto late = pair.endpoint.connect("127.0.0.1", pair.peer.port(), kLimit);
    EXPECT_TRUE(is_error(status_of(late), {ErrorCode::kCancelled})) << transport;
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10)) << transport;
    pair.peer.process().go_on();
  }
}

TEST(EndpointTest, TakesTheFirstPortOfARangeThatIsFree) {
  const Endpoint first = Endpoint::create(on_loopback()).value();
  Options options = on_loopback();
  options.first_port = first.port();
  options.last_port = static_cast<std::uint16_t>(std::min(first.port() + 50, 65535));
  const Result<Endpoint> second = Endpoint::create(options);
  ASSERT_TRUE(is_ok(status_of(second)));
  EXPECT_GT(second->port(), first.port());
  EXPECT_LE(second->port(), options.last_port);
  options.last_port = options.first_port;
  const Result<Endpoint> none = Endpoint::create(options);
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error().message, HasSubstr("UCCL_P2P_PORT"));
  options.port = second->port();  // one that is named counts alone
  EXPECT_FALSE(Endpoint::create(options));
}

TEST(EndpointTest, AnEndpointAtLoopbackIsThereAlone) {
  const auto announced = Endpoint::announced_address(Options());
  ASSERT_TRUE(is_ok(status_of(announced)));
  if (announced->starts_with("127.") || *announced == "::1") GTEST_SKIP() << "there is no other address";
  Endpoint listening = Endpoint::create(on_loopback()).value();
  Endpoint dialling = Endpoint::create(on_loopback()).value();
  EXPECT_FALSE(dialling.connect(*announced, listening.port(), kLimit));
}

TEST(EndpointTest, BothMayCloseAsSoonAsTheLastTransferIsDone) {
  Options options = on_loopback();
  options.transports = {"tcp"};
  Endpoint left = Endpoint::create(options).value();
  Endpoint right = Endpoint::create(options).value();
  std::array<char, 64> out{};
  std::array<char, 64> into{};
  const MemoryRegion source = left.register_memory(out.data(), out.size()).value();
  const MemoryRegion target = right.register_memory(into.data(), into.size()).value();
  for (int round = 0; round < scaled(300, 100); ++round) {
    const Connection sending = left.connect(right.address(), right.port(), kLimit).value();
    const Connection receiving = right.accept(kLimit).value();
    std::thread receiver([&] {
      EXPECT_TRUE(is_ok(receiving.recv(target.span()).wait(kLimit)));
      EXPECT_TRUE(is_ok(receiving.close(kLimit))) << round;
    });
    EXPECT_TRUE(is_ok(sending.send(source.span()).wait(kLimit)));
    EXPECT_TRUE(is_ok(sending.close(kLimit))) << round;
    receiver.join();
  }
}

/// Handles of what an endpoint had: an application may keep them for longer than it.
struct Handles {
  std::vector<Connection> connections;
  std::vector<MemoryRegion> regions;
  std::vector<Transfer> transfers;
};

/// What is left of two endpoints that met, moved something and are gone.
Handles of_two_that_are_gone(const char* transport, std::span<char> memory) {
  Handles left;
  const EndpointPlan plan = plan_over(transport);
  Endpoint dialling = make_endpoint(plan);
  Endpoint listening = make_endpoint(plan);
  left.connections.push_back(dialling.connect(listening.address(), listening.port(), kLimit).value());
  left.connections.push_back(listening.accept(kLimit).value());
  left.regions.push_back(dialling.register_memory(memory.data(), memory.size() / 2).value());
  left.regions.push_back(listening.register_memory(&memory[memory.size() / 2], memory.size() / 2).value());
  left.transfers.push_back(left.connections[1].recv(left.regions[1].span()));
  left.transfers.push_back(left.connections[0].send(left.regions[0].span()));
  for (const Transfer& transfer : left.transfers) EXPECT_TRUE(is_ok(transfer.wait(kLimit)));
  return left;
}

/// Those of this process, of any family.
std::vector<int> listening_sockets() {
  std::vector<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename());
    int listens = 0;
    socklen_t size = sizeof listens;
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 && listens != 0)
      found.push_back(fd);
  }
  return found;
}

// Whoever dials what still listens, and nobody serves, waits for an answer until its peer counts as hung.
TEST(EndpointTest, OneThatIsGoneLeavesNothingOpenToWhoKeepsItsHandles) {
  std::vector<char> memory(std::size_t{8} << 20);
  for (const char* const transport : {"tcp", "cma", "tcp_tls"}) {
    of_two_that_are_gone(transport, memory);  // what the process keeps for all its endpoints is there now
    const Usage before = usage_of(::getpid());
    const Handles kept = of_two_that_are_gone(transport, memory);
    const Usage after = usage_of(::getpid());
    EXPECT_THAT(listening_sockets(), IsEmpty()) << transport;
    EXPECT_EQ(after.threads, before.threads) << transport;
  }
}

TEST(EndpointTest, NetworkOnlyLeavesOutWhatReachesNoFurtherThanTheHost) {
  Options options = on_loopback();
  options.network_only = true;
  Endpoint endpoint = Endpoint::create(options).value();
  const auto connection = endpoint.connect(endpoint.address(), endpoint.port(), kLimit);
  ASSERT_TRUE(is_ok(status_of(connection)));
  EXPECT_EQ(connection->routes().front().transport, "tcp");
  for (const auto& [name, reason] : endpoint.transports()) {
    if (name == "cma" || name == "loopback") {
      EXPECT_THAT(reason, HasSubstr("left out")) << name;
    } else if (name == "tcp") {
      EXPECT_EQ(reason, "");
    }
  }
  options.transports = {"cma"};
  EXPECT_TRUE(is_error(status_of(Endpoint::create(options)), {ErrorCode::kUnavailable}));
}

TEST(EndpointTest, AnnouncesTheAddressOfTheInterfacesAskedFor) {
  Options options;
  options.announce_interfaces = "=lo";
  EXPECT_EQ(Endpoint::announced_address(options).value(), "127.0.0.1");
  EXPECT_EQ(Endpoint::create(options).value().address(), "127.0.0.1");
  options.listen_address = "0.0.0.0";
  EXPECT_EQ(Endpoint::create(options).value().address(), "127.0.0.1");
  options.announce_interfaces = "no such interface";
  EXPECT_TRUE(is_error(status_of(Endpoint::create(options)), {ErrorCode::kInvalidArgument}));
  options.listen_address = "127.0.0.1";
  EXPECT_EQ(Endpoint::announced_address(options).value(), "127.0.0.1");
}

TEST(EndpointTest, ARequiredTransportHasToBeOneOfThoseThatMayBeUsed) {
  Options options = on_loopback();
  options.required = "perhaps";
  EXPECT_TRUE(is_error(status_of(Endpoint::create(options)), {ErrorCode::kInvalidArgument}));
  options.transports = {"cma"};
  options.required = "tcp";
  const auto refused = Endpoint::create(options);
  ASSERT_TRUE(is_error(status_of(refused), {ErrorCode::kInvalidArgument}));
  EXPECT_THAT(refused.error().message, HasSubstr("require transport 'tcp'"));
  options.transports = {"tcp"};
  EXPECT_TRUE(is_ok(status_of(Endpoint::create(options))));
}

}  // namespace
}  // namespace p2p::testing::endpoint
