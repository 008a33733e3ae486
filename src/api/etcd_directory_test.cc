// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "api/directory_drivers.h"
#include "api/directory_testing.h"
#include "api/json.h"
#include "drivers/http/client.h"
#include "drivers/socket/dial.h"
#include "p2p/directory.h"
#include "support/bounds.h"
#include "support/eventually.h"
#include "support/process.h"
#include "support/raw_listener.h"

namespace p2p::directories {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kDecode;
using testing::kLimit;
using testing::Process;

namespace fs = std::filesystem;

/// Debian's etcd-server, of its own.
class EtcdDirectoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::access("/usr/bin/etcd", X_OK) != 0) GTEST_SKIP() << "etcd is not installed (Debian's etcd-server)";
    std::string pattern = ::testing::TempDir() + "/etcd-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    // Both at once, so that they differ.
    const testing::RawListener clients;
    const testing::RawListener peers;
    port_ = clients.port();
    peer_port_ = peers.port();
  }

  void TearDown() override {
    server_.reset();
    fs::remove_all(folder_);
  }

  /// Serves what it finds in `folder`.
  void serve(const std::string& folder) {
    const std::string at = "http://127.0.0.1:" + std::to_string(port_);
    const std::string peers = "http://127.0.0.1:" + std::to_string(peer_port_);
    auto server = Process::spawn(
        {"/usr/bin/etcd", "--data-dir", folder_ + "/" + folder, "--listen-client-urls", at,
         "--advertise-client-urls", at, "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers,
         "--initial-cluster", "default=" + peers, "--unsafe-no-fsync", "--log-level", "panic"});
    ASSERT_TRUE(server) << server.error().message;
    server_.emplace(std::move(*server));
    const Directory names = open();
    ASSERT_TRUE(testing::eventually([&] { return names.entries().has_value(); }));
  }

  std::string where() const { return "etcd://127.0.0.1:" + std::to_string(port_) + "/of/tests"; }

  Directory open(std::chrono::milliseconds lease = 1s) const {
    return Directory::use(where(), lease).value();
  }

  Json ask(const std::string& path, const std::string& body) const {
    const auto deadline = std::chrono::steady_clock::now() + kLimit;
    const auto socket = socket::dial("127.0.0.1", port_, deadline);
    const auto answer =
        http::post(socket->get(), {"etcd", path, "application/json", body}, deadline, 1 << 20);
    return Json::parse(answer->body).value();
  }

  std::string folder_;
  std::uint16_t port_ = 0;
  std::uint16_t peer_port_ = 0;
  std::optional<Process> server_;
};

TEST_F(EtcdDirectoryTest, WhoPublishesIsFoundUntilItIsWithdrawn) {
  serve("data");
  testing::expect_found_until_withdrawn([this] { return open(); });
}

TEST_F(EtcdDirectoryTest, WhatIsUnderAnotherPrefixIsNotListed) {
  serve("data");
  Directory theirs = open();
  ASSERT_TRUE(theirs.publish(kDecode));
  EXPECT_THAT(Directory::use("etcd://127.0.0.1:" + std::to_string(port_))->entries().value(), IsEmpty());
}

TEST_F(EtcdDirectoryTest, WatchTellsWhatHasChanged) {
  serve("data");
  testing::expect_changes_told([this] { return open(); }, kLimit);
}

// An entry comes and another goes while somebody waits: there are as many as before.
TEST_F(EtcdDirectoryTest, WatchTellsWhatHasChangedMeanwhile) {
  serve("data");
  Directory ours = open();
  Directory theirs = open();
  ASSERT_TRUE(theirs.publish(kDecode));
  std::vector<DirectoryEntry> known;
  EXPECT_THAT(ours.watch(known, kLimit).value(), ElementsAre(DirectoryChange{kDecode}));
  std::thread later([&] {
    ASSERT_TRUE(theirs.lookup("seen", kLimit));
    ASSERT_TRUE(theirs.withdraw("decode/0"));
  });
  const DirectoryEntry seen{"seen", "10.0.0.2", 7, "0"};
  EXPECT_TRUE(ours.publish(seen));
  std::vector<DirectoryChange> changes;
  while (changes.size() < 2) {
    const auto some = ours.watch(known, kLimit).value();
    ASSERT_FALSE(some.empty());
    changes.insert(changes.end(), some.begin(), some.end());
  }
  EXPECT_THAT(changes, ElementsAre(DirectoryChange{seen}, DirectoryChange{kDecode, true}));
  later.join();
}

// The package, but for its compiled part, which the directory needs for an endpoint's own description only.
constexpr const char* kPython = R"(
import sys, types
root, where = sys.argv[1:]
package, part = types.ModuleType("uccl"), types.ModuleType("uccl.p2p")
package.__path__, part.Endpoint, package.p2p = [root + "/python/uccl"], object, part
sys.modules.update({"uccl": package, "uccl.p2p": part})
from uccl import directory
with directory.use(where, lease=1.0) as names:
    names.publish("from/python ü", "[fe80::1]:6", note="a \"note\"")
    print(names.lookup("from/cpp ü", timeout=30), flush=True)
    sys.stdin.readline()
)";

TEST_F(EtcdDirectoryTest, AProgramInPythonFindsThisOneAndIsFound) {
  serve("data");
  auto python = Process::spawn({"python3", "-c", kPython, P2P_SOURCE_FOLDER, where()});
  ASSERT_TRUE(python) << python.error().message;
  Directory names = open();
  const auto found = names.lookup("from/python ü", kLimit);
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(*found, (DirectoryEntry{"from/python ü", "fe80::1", 6, "0"}));
  ASSERT_TRUE(names.publish({"from/cpp ü", "10.0.0.1", 5, "0000:3b:00.0"}));
  EXPECT_EQ(python->read_line(kLimit).value(),
            "Entry(name='from/cpp ü', address='10.0.0.1', port=5, gpu='0000:3b:00.0', note='')");
  // One that is killed is gone with its lease.
  python->kill_now();
  EXPECT_TRUE(testing::eventually([&] { return names.entries()->size() == 1; }));
}

TEST_F(EtcdDirectoryTest, AThousandEndpointsMeet) {
  serve("data");
  Directory ours = open(10s);
  Directory theirs = open(10s);
  for (int i = 0; i != 1000; ++i) {
    Directory& one = i % 2 == 0 ? ours : theirs;
    ASSERT_TRUE(one.publish({"worker-" + std::to_string(i), "10.0.0.1", 18500, "0"}));
  }
  const auto begun = std::chrono::steady_clock::now();
  const auto all = open().entries();
  ASSERT_TRUE(all) << all.error().message;
  EXPECT_EQ(all->size(), 1000U);
  EXPECT_LT(std::chrono::steady_clock::now() - begun, 5s);
}

TEST_F(EtcdDirectoryTest, AnEtcdThatHasForgottenAllIsToldAgain) {
  serve("first");
  Directory names = open();
  std::vector<DirectoryEntry> published;
  for (int i = 100; i != 350; ++i) {  // more than one transaction holds
    published.push_back({"worker-" + std::to_string(i), "10.0.0.1", 18500, "0"});
    ASSERT_TRUE(names.publish(published.back()));
  }
  server_->kill_now();
  const auto down = names.publish(kDecode);
  EXPECT_THAT(down.error().message,
              HasSubstr(" of etcd at http://127.0.0.1:" + std::to_string(port_) + ": connect"));
  EXPECT_FALSE(names.lookup("worker-100"));
  serve("second");
  EXPECT_TRUE(names.lookup("worker-349", kLimit));
  EXPECT_EQ(names.entries().value(), published);
}

TEST_F(EtcdDirectoryTest, WhatIsWithdrawnWhileItIsDownGoesOnceItIsBack) {
  serve("data");
  Directory names = open();
  const DirectoryEntry stays{"stays", "10.0.0.2", 7, "0"};
  ASSERT_TRUE(names.publish(kDecode));
  ASSERT_TRUE(names.publish(stays));
  server_->kill_now();
  EXPECT_FALSE(names.withdraw(kDecode.name));
  serve("data");
  EXPECT_TRUE(testing::eventually([&] { return names.entries().value().size() == 1; }));
  EXPECT_THAT(names.entries().value(), ElementsAre(stays));
}

TEST_F(EtcdDirectoryTest, ALeaseThatEndedMeanwhileIsFollowedByAnother) {
  serve("data");
  Directory names = open();
  ASSERT_TRUE(names.publish(kDecode));
  const Json leases = ask("/v3/lease/leases", "{}");
  ASSERT_EQ(leases.find("leases")->list()->size(), 1U);
  const std::string id = *leases.find("leases")->list()->front().find("ID")->scalar();
  ask("/v3/lease/revoke", "{\"ID\": \"" + id + "\"}");
  EXPECT_EQ(names.lookup(kDecode.name, kLimit).value(), kDecode);  // renewed by its thread
  const DirectoryEntry other{"other", "10.0.0.2", 7, "0"};
  const Json again = ask("/v3/lease/leases", "{}");
  ask("/v3/lease/revoke",
      "{\"ID\": \"" + *again.find("leases")->list()->front().find("ID")->scalar() + "\"}");
  EXPECT_TRUE(names.publish(other));
  EXPECT_EQ(names.lookup(kDecode.name, kLimit).value(), kDecode);
}

/// Answers by HTTP what its function says of a path; nothing at all for "".
class Fake {
 public:
  using Answers = std::function<std::string(const std::string& path)>;

  explicit Fake(Answers answers) : answers_(std::move(answers)), thread_([this] { run(); }) {}

  ~Fake() {
    ::shutdown(listener_.fd(), SHUT_RDWR);
    thread_.join();
    for (std::thread& client : clients_) client.join();
  }

  std::string url() const { return "127.0.0.1:" + std::to_string(listener_.port()); }

  static std::string ok(const std::string& body) {
    return "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  }

 private:
  void run() {
    for (;;) {
      UniqueFd client(::accept4(listener_.fd(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!client) return;
      clients_.emplace_back([this, socket = std::move(client)] { serve(socket.get()); });
    }
  }

  void serve(int fd) const {
    std::string request;
    std::array<char, 4096> part;
    while (!request.ends_with("}")) {  // as all of their bodies do
      const ssize_t got = ::recv(fd, part.data(), part.size(), 0);
      if (got <= 0) return;
      request.append(part.data(), static_cast<std::size_t>(got));
    }
    const std::size_t path = request.find(' ') + 1;
    const std::string answer = answers_(request.substr(path, request.find(' ', path) - path));
    if (answer.empty()) {
      static_cast<void>(::recv(fd, part.data(), part.size(), 0));  // until the client has had enough
    } else {
      static_cast<void>(::send(fd, answer.data(), answer.size(), MSG_NOSIGNAL));
    }
  }

  const Answers answers_;
  testing::RawListener listener_;
  std::vector<std::thread> clients_;
  std::thread thread_;
};

constexpr const char* kGranted = R"({"ID": "7", "succeeded": true, "result": {"TTL": "9"}})";

TEST(EtcdAnswersTest, WhatIsNoAnswerIsAnErrorThatNamesTheServer) {
  const std::string ok = "HTTP/1.1 200 OK\r\n";
  for (const std::string& answer :
       {Fake::ok(""), Fake::ok("[]"), Fake::ok("\xff"), Fake::ok(std::string(100000, '[')), Fake::ok("{}}"),
        Fake::ok(R"({"kvs": 5, "ID": [5]})"), Fake::ok(R"({"kvs": [5, {"key": 5}], "ID": "5\", \"a\": \""})"),
        Fake::ok(R"({"kvs": [{"key": "L3VjY2wvZW5kcG9pbnRzL2E"}], "ID": "-1"})"),  // base64 without its end
        Fake::ok(R"({"kvs": [{"key": "L3VjY2wvZW5kcG9pbnRzL2E=", "value": "!!!!"}], "ID": ""})"),
        Fake::ok(R"({"kvs": [{"key": "YQ=="}], "ID": "123456789012345678901"})"),  // not what was asked for
        std::string("HTTP/1.1 500 Oops\r\nContent-Length: 3\r\n\r\nno\n"), std::string("no HTTP\r\n\r\n"),
        ok + "Content-Length: 9\r\n\r\n{}", ok + "Content-Length: 99999999999\r\n\r\n{}"}) {
    const Fake server([&](const std::string&) { return answer; });
    Directory names = Directory::use("etcd://" + server.url(), 1s).value();
    EXPECT_THAT(names.entries().error().message, HasSubstr("kv/range of etcd at http://" + server.url()))
        << answer;
    EXPECT_FALSE(names.lookup("a")) << answer;
    EXPECT_THAT(names.publish(kDecode).error().message, HasSubstr("lease/grant of etcd at http://"))
        << answer;
  }
}

TEST(EtcdAnswersTest, AServerThatDoesNotAnswerIsWaitedForAWhile) {
  const Fake silent([](const std::string&) { return ""; });
  const Directory names = Directory::use("etcd://" + silent.url()).value();
  const auto found = names.lookup("a");
  EXPECT_EQ(found.error().code, ErrorCode::kTimedOut);
  EXPECT_THAT(found.error().message,
              HasSubstr("kv/range of etcd at http://" + silent.url() + ": no answer in time"));
}

TEST(EtcdAnswersTest, AnEntryThatIsNoneHidesNoOther) {
  const Fake server([](const std::string&) {  // a: {, b: an entry
    return Fake::ok(R"({"kvs": [{"key": "L3VjY2wvZW5kcG9pbnRzL2E=", "value": "ew=="},)"
                    R"({"key": "L3VjY2wvZW5kcG9pbnRzL2I=", "mod_revision": 5, "value": )"
                    R"("eyJhZGRyZXNzIjogIjEwLjAuMC4xIiwgInBvcnQiOiA1LCAiZ3B1IjogMH0="}]})");
  });
  const Directory names = Directory::use("etcd://" + server.url()).value();
  EXPECT_THAT(names.entries().value(), ElementsAre(DirectoryEntry{"b", "10.0.0.1", 5, "0"}));
}

TEST(EtcdAnswersTest, AnAnswerThatIsNoneDoesNotEndTheRenewals) {
  std::atomic<int> renewed{0};
  const Fake server([&](const std::string& path) {
    if (path != "/v3/lease/keepalive") return Fake::ok(kGranted);
    return Fake::ok(++renewed % 2 == 1 ? R"({"result": {"TTL": "many"}})" : kGranted);
  });
  Directory names = Directory::use("etcd://" + server.url(), 1s).value();
  ASSERT_TRUE(names.publish(kDecode));
  EXPECT_TRUE(testing::eventually([&] { return renewed > 3; }));
}

// The thread that renews puts an entry again, and the server is slow to do so.
TEST(EtcdAnswersTest, WhatIsWithdrawnIsNotRenewedAfterwards) {
  std::mutex mutex;
  std::condition_variable changed;
  int puts = 0;
  bool removed = false;
  std::vector<std::string> done;
  const Fake server([&](const std::string& path) {
    std::unique_lock lock(mutex);
    if (path == "/v3/kv/txn" && ++puts == 2) {
      changed.notify_all();
      changed.wait_for(lock, 500ms, [&] { return removed; });  // as it should not be
    }
    if (path == "/v3/kv/deleterange") removed = true;
    changed.notify_all();
    if (path.starts_with("/v3/kv")) done.push_back(path);
    return Fake::ok(path == "/v3/lease/keepalive" ? R"({"result": {}})" : kGranted);
  });
  Directory names = Directory::use("etcd://" + server.url(), 1s).value();
  ASSERT_TRUE(names.publish(kDecode));
  {
    std::unique_lock lock(mutex);
    ASSERT_TRUE(changed.wait_for(lock, kLimit, [&] { return puts == 2; }));
  }
  EXPECT_TRUE(names.withdraw(kDecode.name));
  const std::unique_lock lock(mutex);
  EXPECT_THAT(done, ElementsAre("/v3/kv/txn", "/v3/kv/txn", "/v3/kv/deleterange"));
}

TEST(EtcdUseTest, TakesUrlsOfServers) {
  for (const char* const where :
       {"etcd://", "etcd://:2379", "etcd://host:0x5", "etcd://host:99999/a", "etcds://host"}) {
    EXPECT_EQ(Directory::use(where).error().code, ErrorCode::kInvalidArgument) << where;
  }
  EXPECT_THAT(Directory::use("etcd://no-such-host.invalid")->entries().error().message,
              HasSubstr("etcd at http://no-such-host.invalid:2379: look up no-such-host.invalid"));
}

TEST(DnsDirectoryTest, NamesAreThoseOfTheResolver) {
  Directory names = Directory::use("k8s://localhost:18500").value();
  const auto found = names.entries().value();
  EXPECT_TRUE(std::ranges::count(found, DirectoryEntry{"127.0.0.1", "127.0.0.1", 18500, "0"}))
      << found.size();
  EXPECT_TRUE(names.publish({"web-0", "10.0.0.1", 18500, "0"}));
  EXPECT_THAT(names.publish({"web-0", "10.0.0.1", 18501, "0"}).error().message,
              HasSubstr("UCCL_P2P_PORT=18500"));
  EXPECT_FALSE(names.lookup(std::string(64, 'a')));
  for (const char* const where : {"k8s://", "k8s://peers", "k8s://peers:0"}) {
    EXPECT_EQ(Directory::use(where).error().code, ErrorCode::kInvalidArgument) << where;
  }
}

}  // namespace
}  // namespace p2p::directories
