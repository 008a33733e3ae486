// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/eventually.h"
#include "support/peer.h"
#include "support/sockets.h"

namespace p2p::testing::stranger {
namespace {

constexpr std::chrono::milliseconds kSoon{500};

/// A key file that goes away with the test.
class KeyFile {
 public:
  explicit KeyFile(const std::string& key)
      : path_(std::filesystem::temp_directory_path() / fmt::format("p2p-key-{}-{}", ::getpid(), counter_++)) {
    write(path_, key);
  }
  ~KeyFile() { std::filesystem::remove(path_); }
  KeyFile(const KeyFile&) = delete;
  KeyFile& operator=(const KeyFile&) = delete;

  std::string path() const { return path_.string(); }

  /// In one step, as nobody should see half of it.
  void replace(const std::string& key) const {
    const std::filesystem::path beside = path_.string() + ".new";
    write(beside, key);
    std::filesystem::rename(beside, path_);
  }

 private:
  static void write(const std::filesystem::path& path, const std::string& key) {
    std::ofstream(path) << key << "\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_read);
  }

  static inline int counter_ = 0;
  std::filesystem::path path_;
};

/// Forwards connections, the streams' too, and keeps what the connector said on the first one.
class Wiretap {
 public:
  Wiretap(std::string address, std::uint16_t port)
      : address_(std::move(address)), port_(port), thread_([this] { run(); }) {}

  ~Wiretap() {
    stopped_ = true;
    thread_.join();
  }

  std::uint16_t port() const { return listener_.port(); }

  std::string heard() const {
    const std::lock_guard lock(mutex_);
    return heard_;
  }

 private:
  struct Tap {
    Socket from, to;
    bool first = false;
  };

  void run() {
    std::vector<Tap> taps;
    bool first = true;
    while (!stopped_) {
      Socket from = listener_.accept(std::chrono::milliseconds(0));
      if (from.valid()) {
        taps.push_back({std::move(from), Socket::connect(address_, port_), std::exchange(first, false)});
      }
      std::vector<pollfd> watched{{listener_.fd(), POLLIN, 0}};
      for (const Tap& tap : taps) {
        watched.push_back({tap.from.fd(), POLLIN, 0});
        watched.push_back({tap.to.fd(), POLLIN, 0});
      }
      if (::poll(watched.data(), watched.size(), 20) <= 0) continue;
      for (std::size_t i = 0; i != taps.size(); ++i) {
        if (watched[2 * i + 1].revents != 0) forward(taps[i], true);
        if (watched[2 * i + 2].revents != 0) forward(taps[i], false);
      }
      std::erase_if(taps, [](const Tap& tap) { return !tap.from.valid(); });
    }
  }

  void forward(Tap& tap, bool there) {
    if (!tap.from.valid()) return;
    const std::string bytes = (there ? tap.from : tap.to).receive_some();
    if (bytes.empty()) {
      tap = {};
      return;
    }
    if (there && tap.first) {
      const std::lock_guard lock(mutex_);
      heard_ += bytes;
    }
    (there ? tap.to : tap.from).send(bytes);
  }

  const std::string address_;
  const std::uint16_t port_;
  Listener listener_;
  mutable std::mutex mutex_;
  std::string heard_;
  std::atomic<bool> stopped_{false};
  std::thread thread_;
};

std::string random_bytes(std::mt19937_64& random, std::size_t size) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

/// The pair still moves data, and its peer still takes connections.
void expect_healthy(Pair& pair) {
  OwnRegion own(pair.endpoint, 100'000);
  const PeerRegion theirs = pair.peer.region(100'000);
  fill(own.pages.bytes(), 3);
  const auto id = pair.connection.import_region(theirs.descriptor);
  ASSERT_TRUE(is_ok(status_of(id)));
  const RemoteSpan to{*id, theirs.descriptor.address, 100'000};
  EXPECT_TRUE(is_ok(pair.connection.write(own.span(0, 100'000), to).wait(kLimit)));
  EXPECT_TRUE(is_ok(status_of(pair.peer.call(fmt::format("check {} 0 100000 3", theirs.index)))));
  const auto another = pair.endpoint.connect(pair.peer.address(), pair.peer.port(), kLimit);
  ASSERT_TRUE(is_ok(status_of(another)));
  pair.peer.accept();
  EXPECT_TRUE(is_ok(another->close(kLimit)));
}

TEST(Stranger, RandomBytesAtEveryPort) {
  Pair pair({.transport = "tcp"});
  const auto ports = listening_ports(pair.peer.process().pid());
  ASSERT_FALSE(ports.empty());
  std::mt19937_64 random(1);
  for (const std::uint16_t port : ports) {
    int came = 0;
    for (int round = 0; round < scaled(200, 50); ++round) {
      const Socket stranger = Socket::connect(pair.peer.address(), port);
      came += stranger.valid() ? 1 : 0;
      stranger.send(random_bytes(random, random() % (round % 20 == 0 ? 300'000 : 200)));
    }
    EXPECT_GT(came, 0) << port;
  }
  EXPECT_FALSE(pair.peer.call(fmt::format("accept {}", kSoon.count()))) << "no stranger becomes a peer";
  expect_healthy(pair);
}

TEST(Stranger, SilentConnectionsAtEveryPortBlockNobody) {
  Pair pair({.transport = "tcp"});
  const auto ports = listening_ports(pair.peer.process().pid());
  ASSERT_FALSE(ports.empty());
  std::vector<Socket> silent;
  for (const std::uint16_t port : ports) {
    for (int i = 0; i < 50; ++i) silent.push_back(Socket::connect(pair.peer.address(), port));
    EXPECT_TRUE(silent.back().valid()) << port;
  }
  expect_healthy(pair);
}

TEST(Stranger, PortsOfConnectionsInTheMaking) {
  // Streams may listen only while they are being made: they are found and bothered meanwhile.
  Pair pair({.transport = "tcp"});
  std::atomic<bool> stopped{false};
  std::atomic<int> calls{0};
  std::thread stranger([&] {
    std::mt19937_64 random(3);
    while (!stopped) {
      auto ports = listening_ports(pair.peer.process().pid());
      const auto own = listening_ports(::getpid());
      ports.insert(ports.end(), own.begin(), own.end());
      for (const std::uint16_t port : ports) {
        const Socket socket = Socket::connect("127.0.0.1", port);
        if (socket.valid()) calls += socket.send(random_bytes(random, random() % 100)) ? 1 : 0;
      }
    }
  });
  EXPECT_TRUE(eventually([&] { return calls > 0; }));
  for (int round = 0; round < scaled(100, 30); ++round) {
    const auto connection = pair.endpoint.connect(pair.peer.address(), pair.peer.port(), kLimit);
    EXPECT_TRUE(is_ok(status_of(connection)));
    pair.peer.accept();
    if (connection) {
      EXPECT_TRUE(is_ok(connection->close(kLimit)));
    }
  }
  stopped = true;
  stranger.join();
  expect_healthy(pair);
}

TEST(Stranger, EveryPrefixOfATrueHandshake) {
  Pair pair({.transport = "tcp"});
  std::string heard;
  {
    Wiretap wire(pair.peer.address(), pair.peer.port());
    const auto tapped = pair.endpoint.connect("127.0.0.1", wire.port(), kLimit);
    ASSERT_TRUE(is_ok(status_of(tapped)));
    pair.peer.accept();
    heard = wire.heard();
  }
  ASSERT_GT(heard.size(), 32u);
  int came = 0;
  for (std::size_t size = 1; size < heard.size(); size += 1 + heard.size() / 100) {
    for (const std::uint16_t port : listening_ports(pair.peer.process().pid())) {
      came += Socket::connect(pair.peer.address(), port).send(heard.substr(0, size)) ? 1 : 0;
    }
  }
  EXPECT_GT(came, 0);
  // The same with one bit flipped.
  std::mt19937_64 random(2);
  came = 0;
  for (int round = 0; round < 100; ++round) {
    std::string forged = heard;
    forged[random() % forged.size()] ^= static_cast<char>(1 << random() % 8);
    const Socket stranger = Socket::connect(pair.peer.address(), pair.peer.port());
    came += stranger.send(forged) ? 1 : 0;
  }
  EXPECT_GT(came, 0);
  expect_healthy(pair);
}

TEST(Stranger, ReplayedHandshakeProvesNothing) {
  const KeyFile key("the right key of the two");
  Pair pair({.transport = "tcp", .key_file = key.path()});
  std::string heard;
  {
    Wiretap wire(pair.peer.address(), pair.peer.port());
    const auto tapped = pair.endpoint.connect("127.0.0.1", wire.port(), kLimit);
    ASSERT_TRUE(is_ok(status_of(tapped)));
    pair.peer.accept();
    heard = wire.heard();
  }
  for (int round = 0; round < 5; ++round) {
    const Socket replay = Socket::connect(pair.peer.address(), pair.peer.port());
    replay.send(heard);
    EXPECT_TRUE(replay.closed_within(kLimit));
  }
  EXPECT_FALSE(pair.peer.call(fmt::format("accept {}", kSoon.count())));
  expect_healthy(pair);
}

TEST(Stranger, KeysMustAgree) {
  const KeyFile right("the right key of the two");
  const KeyFile wrong("the wrong key for them");
  const KeyFile right_again("  the right key of the two\n\n");
  struct Case {
    std::string here, there;
  };
  const std::vector<Case> refused{
      {"", right.path()}, {right.path(), ""}, {wrong.path(), right.path()}, {right.path(), wrong.path()}};
  for (const Case& one : refused) {
    Peer peer({.key_file = one.there});
    Endpoint endpoint = make_endpoint({.key_file = one.here});
    const Status failed = status_of(endpoint.connect(peer.address(), peer.port(), kLimit));
    EXPECT_TRUE(is_error(failed, {ErrorCode::kPermissionDenied, ErrorCode::kPeerGone}))
        << one.here << " against " << one.there;
    EXPECT_FALSE(peer.call(fmt::format("accept {}", kSoon.count())));
  }
  Peer peer({.key_file = right.path()});
  Endpoint endpoint = make_endpoint({.key_file = right_again.path()});
  EXPECT_TRUE(is_ok(status_of(endpoint.connect(peer.address(), peer.port(), kLimit))));
}

TEST(Stranger, ANameThatMayNotConnectIsToldSo) {
  const KeyFile both("decode-1:the secret of the first\ndecode-2:the secret of the second");
  const KeyFile second("decode-2:the secret of the second");
  const KeyFile third("decode-3:the secret of a third");
  Options options = EndpointPlan{.key_file = both.path()}.options();
  options.allow = {"decode-2"};
  auto endpoint = Endpoint::create(options);
  ASSERT_TRUE(endpoint) << endpoint.error().message;
  const auto dial = [&](const KeyFile& key) {
    Peer peer({.key_file = key.path()});
    const auto answer = peer.call(fmt::format("connect {} {} {}", endpoint->address(), endpoint->port(),
                                              std::chrono::milliseconds(kLimit).count()));
    return answer ? std::string("open") : answer.error().message;
  };
  EXPECT_THAT(dial(both), ::testing::HasSubstr("'decode-1' is not among those that may connect here"));
  EXPECT_THAT(dial(third), ::testing::HasSubstr("it has no key named 'decode-3'"));
  EXPECT_EQ(dial(second), "open");
  const auto accepted = endpoint->accept(kLimit);
  ASSERT_TRUE(accepted) << accepted.error().message;
  EXPECT_EQ(accepted->peer().identity, "decode-2");
}

TEST(Stranger, KeysChangeWhileBothSidesRun) {
  const KeyFile here("old:the secret of before");
  const KeyFile there("old:the secret of before");
  Peer peer({.key_file = there.path()});
  Endpoint endpoint = make_endpoint({.key_file = here.path()});
  const auto identity = [&] {
    const auto connection = endpoint.connect(peer.address(), peer.port(), kLimit);
    return connection ? connection->peer().identity : connection.error().message;
  };
  EXPECT_EQ(identity(), "old");
  there.replace("old:the secret of before\nnew:the secret of later");
  EXPECT_EQ(identity(), "old");
  here.replace("new:the secret of later\nold:the secret of before");
  EXPECT_EQ(identity(), "new");
  there.replace("new:the secret of later");
  EXPECT_EQ(identity(), "new");
  here.replace("old:the secret of before");
  EXPECT_THAT(identity(), ::testing::HasSubstr("it has no key named 'old'"));
}

TEST(Stranger, NoKeyIsTheReasonThatTheUserReads) {
  const KeyFile key("some key that the peer has");
  Peer peer({.key_file = key.path()});
  Endpoint endpoint = make_endpoint({});
  const Status failed = status_of(endpoint.connect(peer.address(), peer.port(), kLimit));
  ASSERT_TRUE(is_error(failed, {ErrorCode::kPermissionDenied}));
  EXPECT_NE(failed.error().message.find("key"), std::string::npos) << failed.error().message;
}

}  // namespace
}  // namespace p2p::testing::stranger
