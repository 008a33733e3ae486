// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// What the conformance suite cannot reach: partial copies, and peers that lie about who and where they are.
#include "transport/cma/cma.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "drivers/crypto/crypto.h"
#include "drivers/socket/local_socket.h"
#include "support/devices.h"
#include "support/forbid.h"
#include "support/process.h"
#include "transport/cma/channel.h"

namespace p2p::cma {
namespace {

using p2p::testing::ProcessEnd;
using ::testing::HasSubstr;

std::uint64_t number(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

Batch batch_of(Operation operation, std::span<const Segment> segments) {
  Batch batch{.operation = operation, .segments = segments};
  for (const Segment& segment : segments) batch.bytes += segment.size;
  return batch;
}

ChannelSetup setup_of(Role role, std::byte secret = std::byte{7}) {
  ChannelSetup setup{.role = role};
  setup.secret.fill(secret);
  return setup;
}

std::unique_ptr<Channel> open(const ChannelSetup& setup) {
  auto pool = std::make_shared<device::StagingPool>(device::StagingPool::Limits{});
  auto channel =
      CmaChannel::open(setup, std::make_shared<device::Staging>(std::move(pool), kStagingShare, false),
                       PeerAccess(std::make_shared<RegistrationTable>(), ""));
  EXPECT_TRUE(channel) << channel.error().message;
  return *std::move(channel);
}

/// Lets both work until neither does; what they wait for is already in their sockets.
// Enough turns for a look at the peer, which not every turn takes.
void settle(std::initializer_list<Channel*> channels) {
  std::vector<Completion> completions;
  for (int round = 0; round < 100; ++round) {
    for (Channel* channel : channels) channel->progress(completions);
  }
}

TEST(CmaCopier, MoreEntriesThanOneCallTakes) {
  constexpr std::size_t kBlocks = 5000;
  std::vector<std::uint32_t> source(2 * kBlocks);
  std::vector<std::uint32_t> destination(2 * kBlocks);
  std::iota(source.begin(), source.end(), 1U);
  std::vector<Segment> segments;
  for (std::size_t i = 0; i < kBlocks; ++i) {
    segments.push_back({.local = reinterpret_cast<std::byte*>(&destination[2 * (kBlocks - 1 - i)]),
                        .remote = number(&source[2 * i]),
                        .size = 4});
  }
  ProcessCopier copier;
  const Status status = copier.copy(::getpid(), batch_of(Operation::kRead, segments));
  ASSERT_TRUE(status) << status.error().message;
  for (std::size_t i = 0; i < kBlocks; ++i) {
    ASSERT_EQ(destination[2 * (kBlocks - 1 - i)], source[2 * i]) << i;
    ASSERT_EQ(destination[2 * i + 1], 0U) << i;
  }
}

TEST(CmaCopier, SaysWhereACopyEnded) {
  const std::size_t page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* const map = ::mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(map, MAP_FAILED);
  auto* const bytes = static_cast<std::byte*>(map);
  ASSERT_EQ(::munmap(bytes + page, page), 0);
  std::vector<std::byte> local(2 * page, std::byte{9});
  const std::vector<Segment> segments{{.local = local.data(), .remote = number(map), .size = 2 * page}};
  ProcessCopier copier;
  const Status status = copier.copy(::getpid(), batch_of(Operation::kWrite, segments));
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kSystem);
  EXPECT_THAT(status.error().message,
              HasSubstr(fmt::format("write {} bytes at {}", page, static_cast<void*>(bytes + page))));
  EXPECT_THAT(status.error().message, HasSubstr("Bad address"));
  // What comes next does not start with what is left of this.
  const std::vector<Segment> good{{.local = local.data(), .remote = number(map), .size = page}};
  EXPECT_TRUE(copier.copy(::getpid(), batch_of(Operation::kWrite, good)));
  ::munmap(map, page);
}

TEST(CmaCopier, ProcessThatEnded) {
  auto child = p2p::testing::Process::forked([] { return 0; }).value();
  const pid_t ended = child.pid();
  ASSERT_EQ(child.wait(p2p::testing::kLimit), ProcessEnd{.code = 0});
  std::byte byte{};
  const std::vector<Segment> segments{{.local = &byte, .remote = number(&byte), .size = 1}};
  ProcessCopier copier;
  const Status status = copier.copy(ended, batch_of(Operation::kRead, segments));
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kPeerGone);
}

// A sandbox may allow to read and forbid to write.
TEST(CmaAccess, IsRefusedWhereOneOfTheCallsIsForbidden) {
  MemoryProof proof{.token_address = 0};
  proof.token.fill(std::byte{3});
  proof.token_address = number(proof.token.data());
  EXPECT_TRUE(check_access(::getpid(), proof));
  struct Case {
    unsigned call;
    std::string_view name;
  };
  for (const Case& one : {Case{SYS_process_vm_readv, "read"}, Case{SYS_process_vm_writev, "write"}}) {
    for (const int error : {EPERM, ENOSYS}) {
      const ProcessEnd end = p2p::testing::in_child([&] {
        if (!p2p::testing::forbid(one.call, static_cast<unsigned>(error))) return 2;
        const Status refused = check_access(::getpid(), proof);
        return !refused && refused.error().message.starts_with(fmt::format("{} the memory", one.name)) ? 0
                                                                                                       : 1;
      });
      if (end.code == 2) GTEST_SKIP() << "no filter can be set here";
      EXPECT_EQ(end, ProcessEnd{.code = 0}) << one.name << ", error " << error;
    }
  }
}

TEST(CmaHandshake, ProofHoldsForOneProcessRoleSessionAndListener) {
  const ChannelSetup connector = setup_of(Role::kConnector);
  const ChannelSetup acceptor = setup_of(Role::kAcceptor);
  Token listener{};
  listener.fill(std::byte{3});
  MemoryProof proof{.token_address = 4096};
  const Bytes bytes = proof.serialize(connector, listener);
  ASSERT_EQ(bytes.size(), MemoryProof::kBytes);
  EXPECT_TRUE(MemoryProof::parse(bytes, acceptor, listener, ::getpid()));
  EXPECT_FALSE(MemoryProof::parse(bytes, acceptor, listener, ::getpid() + 1));
  EXPECT_FALSE(MemoryProof::parse(bytes, connector, listener, ::getpid()));
  EXPECT_FALSE(MemoryProof::parse(bytes, setup_of(Role::kAcceptor, std::byte{8}), listener, ::getpid()));
  EXPECT_FALSE(MemoryProof::parse(bytes, acceptor, Token{}, ::getpid()));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    Bytes forged = bytes;
    forged[i] ^= std::byte{1};
    EXPECT_FALSE(MemoryProof::parse(forged, acceptor, listener, ::getpid())) << i;
    EXPECT_FALSE(MemoryProof::parse(ByteView(bytes).first(i), acceptor, listener, ::getpid())) << i;
  }
}

TEST(CmaHandshake, ReadsTheTokenInThePeersMemory) {
  MemoryProof proof;
  proof.token.fill(std::byte{1});
  Token elsewhere{};
  proof.token_address = number(proof.token.data());
  EXPECT_TRUE(check_access(::getpid(), proof));
  proof.token_address = number(elsewhere.data());
  const Status other = check_access(::getpid(), proof);
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, ErrorCode::kProtocol);
  proof.token_address = 0;
  EXPECT_FALSE(check_access(::getpid(), proof));
}

TEST(CmaChannelTest, SaysWhyAPeerElsewhereIsOutOfReach) {
  const auto channel = open(setup_of(Role::kConnector));
  const auto here = Host::here();
  ASSERT_TRUE(here);
  struct Case {
    Host host;
    const char* reason;
  };
  std::array cases{Case{*here, "another host"}, Case{*here, "another PID namespace"},
                   Case{*here, "another network namespace"}};
  cases[0].host.boot[0] ^= 1;
  ++cases[1].host.pid_namespace;
  ++cases[2].host.place;
  for (const Case& elsewhere : cases) {
    const Status status = channel->connect(Address{.host = elsewhere.host}.serialize());
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, ErrorCode::kUnavailable);
    EXPECT_THAT(status.error().message, HasSubstr(elsewhere.reason));
  }
}

// A peer that sends back what it was sent must not make this process read or write itself.
TEST(CmaChannelTest, ReflectedAddressLeadsNowhere) {
  const auto acceptor = open(setup_of(Role::kAcceptor));
  const auto other_session = open(setup_of(Role::kConnector, std::byte{8}));
  const auto same_role = open(setup_of(Role::kAcceptor));
  ASSERT_TRUE(acceptor->connect(acceptor->address()));
  ASSERT_TRUE(acceptor->connect(same_role->address()));
  ASSERT_TRUE(other_session->connect(acceptor->address()));
  settle({acceptor.get(), other_session.get(), same_role.get()});
  EXPECT_EQ(acceptor->state(), ChannelState::kConnecting);
  EXPECT_EQ(same_role->state(), ChannelState::kConnecting);
  EXPECT_EQ(other_session->state(), ChannelState::kFailed);
  EXPECT_FALSE(open(setup_of(Role::kConnector))->connect(other_session->address()));
}

// Any process of the host can connect to the socket; none can keep the peer out.
TEST(CmaChannelTest, StrangersDoNotKeepThePeerOut) {
  const auto acceptor = open(setup_of(Role::kAcceptor));
  const auto connector = open(setup_of(Role::kConnector));
  const auto address = Address::parse(acceptor->address());
  ASSERT_TRUE(address);
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 40; ++i) {
    auto socket = socket::connect_locally(name_of(address->listener));
    ASSERT_TRUE(socket) << socket.error().message;
    if (i % 2 == 0) {
      const Bytes noise(static_cast<std::size_t>(i) * 3 + 1, std::byte{0x5f});
      EXPECT_GT(::send(socket->get(), noise.data(), noise.size(), MSG_NOSIGNAL), 0);
    }
    strangers.push_back(*std::move(socket));
    settle({acceptor.get()});
  }
  ASSERT_TRUE(acceptor->connect(connector->address()));
  ASSERT_TRUE(connector->connect(acceptor->address()));
  settle({acceptor.get(), connector.get()});
  EXPECT_EQ(acceptor->state(), ChannelState::kReady) << acceptor->error().message;
  EXPECT_EQ(connector->state(), ChannelState::kReady) << connector->error().message;
  strangers.clear();
  pollfd ready{.fd = acceptor->ready_fd(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&ready, 1, 0), 0) << "woken by strangers";
  EXPECT_THAT(connector->describe(), HasSubstr(std::to_string(::getpid())));
}

TEST(CmaChannelTest, StrangersBehindThePeerDoNotTakeItsPlace) {
  const auto acceptor = open(setup_of(Role::kAcceptor));
  const auto connector = open(setup_of(Role::kConnector));
  const auto address = Address::parse(acceptor->address());
  ASSERT_TRUE(address);
  ASSERT_TRUE(acceptor->connect(connector->address()));
  ASSERT_TRUE(connector->connect(acceptor->address()));
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 12; ++i) {
    auto socket = socket::connect_locally(name_of(address->listener));
    ASSERT_TRUE(socket) << socket.error().message;
    strangers.push_back(*std::move(socket));
  }
  settle({acceptor.get(), connector.get()});
  EXPECT_EQ(acceptor->state(), ChannelState::kReady) << acceptor->error().message;
  EXPECT_EQ(connector->state(), ChannelState::kReady) << connector->error().message;
}

TEST(CmaChannelTest, NothingWakesAFailedChannel) {
  const auto acceptor = open(setup_of(Role::kAcceptor));
  auto connector = open(setup_of(Role::kConnector));
  ASSERT_TRUE(acceptor->connect(connector->address()));
  ASSERT_TRUE(connector->connect(acceptor->address()));
  settle({acceptor.get(), connector.get()});
  pollfd ready{.fd = acceptor->ready_fd(), .events = POLLIN, .revents = 0};
  ASSERT_TRUE(acceptor->arm_events());
  EXPECT_EQ(::poll(&ready, 1, 0), 0);
  connector.reset();
  EXPECT_EQ(::poll(&ready, 1, 1000), 1);
  settle({acceptor.get()});
  EXPECT_EQ(acceptor->state(), ChannelState::kFailed);
  EXPECT_EQ(acceptor->error().code, ErrorCode::kPeerGone);
  EXPECT_EQ(::poll(&ready, 1, 0), 0);
  EXPECT_FALSE(acceptor->post({}));
}

TEST(CmaChannelTest, WhoLooksIsNotWokenAndMissesNoWakeUp) {
  const auto acceptor = open(setup_of(Role::kAcceptor));
  const auto connector = open(setup_of(Role::kConnector));
  ASSERT_TRUE(acceptor->connect(connector->address()));
  ASSERT_TRUE(connector->connect(acceptor->address()));
  settle({acceptor.get(), connector.get()});
  const std::vector<std::byte> block(100);
  pollfd ready{.fd = acceptor->ready_fd(), .events = POLLIN, .revents = 0};
  for (int round = 0; round != 1000; ++round) {
    ASSERT_TRUE(acceptor->arm_events()) << round;
    ASSERT_EQ(::poll(&ready, 1, 0), 0) << round << ": a wake-up was left";
    const bool woken = round % 3 == 0;
    if (woken) {
      ASSERT_TRUE(connector->say(block));
    }
    ASSERT_EQ(acceptor->enter_polling(), !woken) << round;
    ASSERT_EQ(::poll(&ready, 1, 0), woken ? 1 : 0) << round;
    ASSERT_TRUE(connector->say(block));
    ASSERT_EQ(::poll(&ready, 1, 0), woken ? 1 : 0) << round << ": woken while it looks";
    settle({acceptor.get()});
  }
}

TEST(CmaChannelTest, WordsAreNoEndOfThePeerAndWakeNobodyWhoLeft) {
  const auto acceptor = open(setup_of(Role::kAcceptor));
  auto connector = open(setup_of(Role::kConnector));
  ASSERT_TRUE(acceptor->connect(connector->address()));
  ASSERT_TRUE(connector->connect(acceptor->address()));
  settle({acceptor.get(), connector.get()});
  const std::vector<std::byte> block(100);
  pollfd ready{.fd = acceptor->ready_fd(), .events = POLLIN, .revents = 0};
  ASSERT_TRUE(acceptor->arm_events());
  ASSERT_TRUE(connector->say(block));
  EXPECT_EQ(::poll(&ready, 1, 0), 1);
  settle({acceptor.get()});
  ASSERT_EQ(acceptor->state(), ChannelState::kReady);
  ASSERT_TRUE(acceptor->arm_events());
  const auto end = dynamic_cast<LeavesPeer&>(*acceptor).leave().end;
  ASSERT_TRUE(end);
  ASSERT_TRUE(connector->say(block));
  pollfd over{.fd = end->fd(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&over, 1, 0), 0);
  EXPECT_FALSE(end->over());
  connector.reset();
  EXPECT_EQ(::poll(&over, 1, 1000), 1);
  EXPECT_TRUE(end->over());
}

// The acceptor serves as soon as it has the connector's proof.
TEST(CmaChannelTest, AConnectorThatIsNotReadyLeavesATwinThatMayCopy) {
  auto acceptor = open(setup_of(Role::kAcceptor));
  const auto connector = open(setup_of(Role::kConnector));
  ASSERT_TRUE(acceptor->connect(connector->address()));
  ASSERT_TRUE(connector->connect(acceptor->address()));
  settle({acceptor.get()});
  ASSERT_EQ(acceptor->state(), ChannelState::kReady);
  ASSERT_EQ(connector->state(), ChannelState::kConnecting);
  const auto end = dynamic_cast<LeavesPeer&>(*connector).leave().end;
  ASSERT_TRUE(end);
  pollfd over{.fd = end->fd(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&over, 1, 0), 0);
  EXPECT_FALSE(end->over());
  settle({acceptor.get()});
  EXPECT_EQ(acceptor->state(), ChannelState::kFailed);
  EXPECT_EQ(::poll(&over, 1, 1000), 1);
  EXPECT_TRUE(end->over());
}

// As one does that may not read its twin's memory, where the twin may read its own.
TEST(CmaChannelTest, AConnectorThatFailsOnItsWayWaitsForATwinThatMayCopy) {
  Token name{};
  ASSERT_TRUE(crypto::random_bytes(name));
  const auto listener = socket::listen_locally(name_of(name));
  ASSERT_TRUE(listener);
  const auto connector = open(setup_of(Role::kConnector));
  const Address address{
      .host = *Host::here(), .pid = static_cast<std::uint32_t>(::getpid()), .listener = name};
  ASSERT_TRUE(connector->connect(address.serialize()));
  UniqueFd twin = socket::accept_local(*listener);
  const Token other{};
  MemoryProof proof{.token_address = number(other.data())};
  proof.token.fill(std::byte{9});  // not what lies there
  ASSERT_TRUE(socket::send_packet(twin, proof.serialize(setup_of(Role::kAcceptor), name), {}, {}));
  settle({connector.get()});
  EXPECT_EQ(connector->state(), ChannelState::kConnecting);
  twin.reset();
  settle({connector.get()});
  EXPECT_EQ(connector->state(), ChannelState::kFailed);
  EXPECT_THAT(connector->error().message, HasSubstr("the bytes there are not the peer's"));
}

TEST(CmaChannelTest, AConnectorThatIsNotTakenUpWaitsForTheListenersEnd) {
  auto acceptor = open(setup_of(Role::kAcceptor));
  const auto connector = open(setup_of(Role::kConnector));
  ASSERT_TRUE(connector->connect(acceptor->address()));
  const auto end = dynamic_cast<LeavesPeer&>(*connector).leave().end;
  ASSERT_TRUE(end);
  EXPECT_FALSE(end->over()) << "it may be taken up at any time";
  acceptor.reset();
  EXPECT_TRUE(end->over());
}

TEST(CmaTransport, ImportsHostRangesOnly) {
  const auto transport = make({}, test_devices());
  ASSERT_TRUE(transport->probe()) << transport->probe().error().message;
  RegionInfo info{.id = RegionId{1}, .base = reinterpret_cast<std::byte*>(0x1000), .size = 10};
  EXPECT_TRUE(transport->import_region(info, {}));
  info.place = {.kind = MemoryKind::kCuda, .device = 0};
  EXPECT_FALSE(transport->import_region(info, {}));
}

}  // namespace
}  // namespace p2p::cma
