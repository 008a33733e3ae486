// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Two sessions over softnet, as an application would use them. Runs in several of softnet's modes.
#include "tcpx/session.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <thread>

#include "support/eventually.h"
#include "tcpx/environment.h"
#include "tcpx/transfer.h"

namespace tcpx {
namespace {

using std::chrono::seconds;

/// softnet, or what stands between it and us.
std::string plugin() {
  const char* const named = std::getenv("TCPX_TEST_PLUGIN");
  return named == nullptr ? SOFTNET_PATH : named;
}

TcpxOptions options() {
  TcpxOptions set;
  set.plugin = plugin();
  set.channels = 3;
  set.chunk_bytes = 128 << 10;
  set.host_pool = discover(plugin())->devices.at(0).unpack;
  return set;
}

std::vector<std::byte> noise(std::size_t size, unsigned seed) {
  // Room to start at a page: CUDA-typed registrations are of whole pages.
  std::vector<std::byte> bytes(size);
  std::mt19937 random(seed);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

/// A server that receives and a client that sends.
struct Ends {
  std::optional<TcpxSession> server;
  std::optional<TcpxSession> client;

  explicit Ends(const TcpxOptions& set = options()) {
    auto opened_server = TcpxSession::open(set);
    auto opened_client = TcpxSession::open(set);
    EXPECT_TRUE(opened_server && opened_client);
    server = std::move(*opened_server);
    client = std::move(*opened_client);
    const auto info = server->listen();
    EXPECT_TRUE(info);
    EXPECT_TRUE(client->loadRemoteConnInfo("server", *info));
    std::thread accepting([this] {
      const auto accepted = server->accept("client", seconds(20));
      EXPECT_TRUE(accepted) << accepted.error().message;
    });
    const auto connected = client->connect("server", seconds(20));
    EXPECT_TRUE(connected) << connected.error().message;
    accepting.join();
  }
};

/// Both sides have to be polled.
void finish(TcpxTransfer& send, TcpxTransfer& receive) {
  std::thread sending([&] {
    const auto sent = send.wait(seconds(20));
    EXPECT_TRUE(sent) << sent.error().message;
  });
  const auto received = receive.wait(seconds(20));
  EXPECT_TRUE(received) << received.error().message;
  sending.join();
}

TEST(Session, MovesBytesBetweenManyMemories) {
  Ends ends;
  std::vector<std::vector<std::byte>> from, to;
  TcpxTransfer send(*ends.client, "server"), receive(*ends.server, "client");
  const std::size_t sizes[] = {22, 1, 4096, 131072, 131073, 1000000, 5 << 20};
  for (const std::size_t size : sizes) {
    from.push_back(noise(size, static_cast<unsigned>(size)));
    to.emplace_back(size);
    const auto source = ends.client->registerMemory(from.back().data(), size);
    const auto target = ends.server->registerMemory(to.back().data(), size);
    ASSERT_TRUE(source && target);
    ASSERT_TRUE(send.postSend(*source, 0, size));
    ASSERT_TRUE(receive.postRecv(*target, 0, size));
  }
  finish(send, receive);
  EXPECT_EQ(from, to);
}

TEST(Session, MovesRangesAndEmptyMessages) {
  Ends ends;
  std::vector<std::byte> from = noise(300000, 1), to(300000);
  const auto source = ends.client->registerMemory(from.data(), from.size());
  const auto target = ends.server->registerMemory(to.data(), to.size());
  TcpxTransfer send(*ends.client, "server"), receive(*ends.server, "client");
  for (std::size_t at = 0; at < from.size(); at += 1000) {
    ASSERT_TRUE(send.postSend(*source, at, 1000));
    ASSERT_TRUE(send.postSend(*source, at, 0));
    ASSERT_TRUE(receive.postRecv(*target, at, 1000));
    ASSERT_TRUE(receive.postRecv(*target, at, 0));
  }
  finish(send, receive);
  EXPECT_EQ(from, to);
  EXPECT_TRUE(ends.client->deregisterMemory(*source));
  EXPECT_FALSE(ends.client->deregisterMemory(*source));
}

TEST(Session, BothDirectionsAtOnce) {
  Ends ends;
  const auto info = ends.client->listen();
  ASSERT_TRUE(info && ends.server->loadRemoteConnInfo("client", *info));
  std::thread accepting([&] { EXPECT_TRUE(ends.client->accept("server", seconds(20))); });
  EXPECT_TRUE(ends.server->connect("client", seconds(20)));
  accepting.join();
  std::vector<std::byte> a = noise(3 << 20, 5), b = noise(3 << 20, 6), at_a(a.size()), at_b(b.size());
  TcpxTransfer client(*ends.client, "server"), server(*ends.server, "client");
  ASSERT_TRUE(client.postSend(*ends.client->registerMemory(a.data(), a.size()), 0, a.size()));
  ASSERT_TRUE(client.postRecv(*ends.client->registerMemory(at_a.data(), a.size()), 0, a.size()));
  ASSERT_TRUE(server.postSend(*ends.server->registerMemory(b.data(), b.size()), 0, b.size()));
  ASSERT_TRUE(server.postRecv(*ends.server->registerMemory(at_b.data(), b.size()), 0, b.size()));
  finish(client, server);
  EXPECT_EQ(a, at_b);
  EXPECT_EQ(b, at_a);
}

TEST(Session, RefusesWhatCannotWork) {
  Ends ends;
  std::vector<std::byte> memory(100);
  const auto id = ends.client->registerMemory(memory.data(), memory.size());
  TcpxTransfer transfer(*ends.client, "server"), unknown(*ends.client, "nobody");
  EXPECT_EQ(transfer.postSend(*id, 90, 11).error().code, p2p::ErrorCode::kOutOfRange);
  EXPECT_EQ(transfer.postSend(*id, ~std::uint64_t{0}, 2).error().code, p2p::ErrorCode::kOutOfRange);
  EXPECT_EQ(transfer.postSend(77, 0, 1).error().code, p2p::ErrorCode::kNotFound);
  EXPECT_EQ(transfer.postRecv(*id, 0, 1).error().code, p2p::ErrorCode::kInvalidArgument);
  EXPECT_EQ(unknown.postSend(*id, 0, 1).error().code, p2p::ErrorCode::kNotFound);
  EXPECT_FALSE(ends.client->registerMemory(nullptr, 10));
  EXPECT_FALSE(ends.client->loadRemoteConnInfo("other", std::vector<std::byte>(50)));
  TcpxOptions other = options();
  other.channels = 2;
  auto server = TcpxSession::open(other);
  const auto mismatch = ends.client->loadRemoteConnInfo("other", *server->listen());
  EXPECT_NE(mismatch.error().message.find("has 2 channels"), std::string::npos);
  EXPECT_EQ(server->accept("late", std::chrono::milliseconds(1)).error().code, p2p::ErrorCode::kTimedOut);
}

TEST(Session, AClientOfASessionThatGaveUpIsNotTakenForTheNextOnes) {
  auto opened = TcpxSession::open(options()), server = TcpxSession::open(options());
  auto stranger = TcpxSession::open(options()), client = TcpxSession::open(options());
  ASSERT_TRUE(opened && server && stranger && client);
  std::optional<TcpxSession> gave_up(std::move(*opened));
  const auto old_info = gave_up->listen();
  EXPECT_EQ(gave_up->accept("late", std::chrono::milliseconds(1)).error().code, p2p::ErrorCode::kTimedOut);
  gave_up.reset();
  const auto info = server->listen();
  ASSERT_TRUE(old_info && info);
  EXPECT_NE(*old_info, *info);
  ASSERT_TRUE(stranger->loadRemoteConnInfo("server", *old_info));
  ASSERT_TRUE(client->loadRemoteConnInfo("server", *info));
  p2p::Status accepted;
  std::thread accepting([&] { accepted = server->accept("client", seconds(20)); });
  // Whether it reaches a listener is the plugin's affair.
  (void)stranger->connect("server", std::chrono::milliseconds(500));
  (void)client->connect("server", seconds(20));
  accepting.join();
  std::vector<std::byte> right = noise(1000, 1), wrong = noise(1000, 2), to(1000);
  TcpxTransfer sent(*client, "server"), sent_by_stranger(*stranger, "server");
  (void)sent.postSend(*client->registerMemory(right.data(), right.size()), 0, right.size());
  (void)sent_by_stranger.postSend(*stranger->registerMemory(wrong.data(), wrong.size()), 0, wrong.size());
  if (!accepted) {
    EXPECT_EQ(accepted.error().code, p2p::ErrorCode::kPermissionDenied) << accepted.error().message;
    EXPECT_NE(accepted.error().message.find("accept of client: channel 0: "), std::string::npos)
        << accepted.error().message;
    return;
  }
  TcpxTransfer receive(*server, "client");
  ASSERT_TRUE(receive.postRecv(*server->registerMemory(to.data(), to.size()), 0, to.size()));
  std::thread sending([&] {
    (void)sent_by_stranger.wait(std::chrono::milliseconds(100));
    EXPECT_TRUE(sent.wait(seconds(20)));
  });
  EXPECT_TRUE(receive.wait(seconds(20)));
  sending.join();
  EXPECT_EQ(to, right);
}

TEST(Session, ChecksThePeersHandlesFieldByField) {
  if (discover(plugin())->name == "softnet") GTEST_SKIP() << "its handles harm nobody";
  auto server = TcpxSession::open(options());
  auto client = TcpxSession::open(options());
  ASSERT_TRUE(server && client);
  const auto info = server->listen();
  ASSERT_TRUE(info);
  constexpr std::size_t kHead = 48, kHandle = 128, kThreads = 40;  // of a handle
  for (const std::size_t channel : {0U, 2U}) {
    auto broken = *info;
    std::memset(broken.data() + kHead + channel * kHandle + kThreads, 0, 4);
    const auto loaded = client->loadRemoteConnInfo("server", broken);
    ASSERT_FALSE(loaded) << "the plugin would divide by it";
    EXPECT_EQ(loaded.error().code, p2p::ErrorCode::kInvalidArgument);
    EXPECT_NE(loaded.error().message.find("number of threads 0"), std::string::npos)
        << loaded.error().message;
  }
  EXPECT_TRUE(client->loadRemoteConnInfo("server", *info));
}

/// It times out and says so once it is under way, which on a busy machine may take a while.
::testing::AssertionResult stalls(TcpxTransfer& transfer, const std::string& saying) {
  std::string said;
  const bool so = p2p::testing::eventually([&] {
    const auto stalled = transfer.wait(std::chrono::milliseconds(20));
    said = stalled ? "it ended" : stalled.error().message;
    return !stalled && stalled.error().code == p2p::ErrorCode::kTimedOut &&
           said.find(saying) != std::string::npos;
  });
  return so ? ::testing::AssertionSuccess() : ::testing::AssertionFailure() << said;
}

TEST(Session, AReceiveWithoutASenderTimesOutAndFailsWhenThePeerCloses) {
  Ends ends;
  std::vector<std::byte> memory(100);
  const auto id = ends.server->registerMemory(memory.data(), memory.size());
  TcpxTransfer receive(*ends.server, "client");
  ASSERT_TRUE(receive.postRecv(*id, 0, 100));
  EXPECT_TRUE(stalls(receive, "the other side is silent"));
  EXPECT_EQ(ends.server->deregisterMemory(*id).error().code, p2p::ErrorCode::kInvalidArgument);
  ends.client.reset();
  EXPECT_EQ(receive.wait(seconds(20)).error().code, p2p::ErrorCode::kPeerGone);
  EXPECT_TRUE(ends.server->deregisterMemory(*id));
}

TEST(Session, ASendThatNobodyReceivesSaysSoAndFailsWhenThePeerCloses) {
  Ends ends;
  std::vector<std::byte> memory(64 << 20);  // more than sockets hold
  const auto id = ends.client->registerMemory(memory.data(), memory.size());
  TcpxTransfer send(*ends.client, "server");
  ASSERT_TRUE(send.postSend(*id, 0, memory.size()));
  EXPECT_TRUE(stalls(send, "posts no receives"));
  ends.server.reset();
  // Not by SIGPIPE, which some plugins raise.
  EXPECT_EQ(send.wait(seconds(20)).error().code, p2p::ErrorCode::kPeerGone);
}

TEST(Session, AReceiveThatThePluginDoesNotTakeIsPostedAgainAndSaysSo) {
  if (std::getenv("TCPX_TEST_PLUGIN") == nullptr) GTEST_SKIP() << "softnet takes what it is given";
  Ends ends;
  std::vector<std::byte> from = noise(1000, 1), to(1000);
  const auto source = ends.client->registerMemory(from.data(), from.size());
  const auto target = ends.server->registerMemory(to.data(), to.size());
  TcpxTransfer send(*ends.client, "server"), receive(*ends.server, "client");
  ASSERT_TRUE(send.postSend(*source, 0, from.size()));
  ASSERT_TRUE(receive.postRecv(*target, 0, to.size()));
  ::setenv("TCPX_TEST_SHY", "never", 1);
  EXPECT_TRUE(stalls(receive, "1 messages wait, and the plugin takes none"));
  ::unsetenv("TCPX_TEST_SHY");
  finish(send, receive);
  EXPECT_EQ(from, to);
}

TEST(Session, RefusesMemoryThatThePluginCannotTakeAtOnce) {
  Ends ends;
  // Only looked at: 2 GiB of it are never touched.
  const std::size_t size = std::size_t{2} << 30;
  void* const data =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(data, MAP_FAILED);
  const auto all = ends.client->registerMemory(data, size);
  ASSERT_FALSE(all);
  EXPECT_EQ(all.error().code, p2p::ErrorCode::kInvalidArgument);
  EXPECT_NE(all.error().message.find("register parts"), std::string::npos) << all.error().message;
  EXPECT_TRUE(ends.client->registerMemory(data, size / 2));
  ::munmap(data, size);
}

TEST(Session, DescribesItsMemory) {
  Ends ends;
  std::vector<std::byte> memory(100);
  const auto id = ends.server->registerMemory(memory.data(), memory.size());
  const auto descriptor = ends.server->describeMemory(*id);
  ASSERT_TRUE(descriptor);
  const auto bytes = descriptor->serialize();
  const auto parsed = TcpxMemoryDescriptor::deserialize(bytes);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->mem_id, *id);
  EXPECT_EQ(parsed->address, reinterpret_cast<std::uintptr_t>(memory.data()));
  EXPECT_EQ(parsed->size, 100u);
  EXPECT_EQ(parsed->place, p2p::MemoryPlace{});
  auto broken = bytes;
  for (std::size_t index : {0, 4, 6, 7, 36}) {
    broken = bytes;
    broken[index] ^= std::byte{0x55};
    EXPECT_FALSE(TcpxMemoryDescriptor::deserialize(broken)) << "byte " << index;
  }
  EXPECT_FALSE(TcpxMemoryDescriptor::deserialize(std::span(bytes).first(39)));
}

TEST(Environment, ListsThePluginAndItsDevices) {
  const auto report = discover(SOFTNET_PATH);
  ASSERT_TRUE(report) << report.error().message;
  EXPECT_EQ(report->name, "softnet");
  EXPECT_EQ(report->abi_version, 7);
  ASSERT_FALSE(report->devices.empty());
  EXPECT_EQ(report->devices[0].name, "lo");
  EXPECT_GT(report->devices[0].mtu, 0);
  EXPECT_FALSE(check_environment(*report).empty());
  EXPECT_FALSE(discover("/nowhere/libnccl-net.so"));
}

TEST(Environment, SaysWhatTheRecipeMisses) {
  ::unsetenv("NCCL_DYNAMIC_CHUNK_SIZE");
  ::setenv("NCCL_USE_DMA_BUF", "0", 1);
  const PluginReport report{"libnccl-net.so", "GPUDirectTCPX_v7", 7, {}};
  bool chunk = false, dma_buf = false, manager = false;
  for (const Finding& finding : check_environment(report)) {
    const bool bad = finding.verdict == Finding::Verdict::kBad;
    chunk = chunk || (bad && finding.subject == "NCCL_DYNAMIC_CHUNK_SIZE" && finding.found == "unset" &&
                      finding.advice.find("524288") != std::string::npos);
    dma_buf = dma_buf || (bad && finding.subject == "NCCL_USE_DMA_BUF" && finding.found == "0");
    manager = manager || (bad && finding.subject == "RxDM");
  }
  EXPECT_TRUE(chunk);
  EXPECT_TRUE(dma_buf);
  EXPECT_TRUE(manager);
}

}  // namespace
}  // namespace tcpx
