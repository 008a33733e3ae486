// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// What the owner lets peers do with a region: RegionOptions.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "support/eventually.h"
#include "support/forbid.h"
#include "support/peer.h"

namespace p2p::testing::rights {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kSize = 100'000;

/// Two endpoints of this process; the first one dials.
class RightsTest : public ::testing::Test {
 protected:
  ~RightsTest() override { std::filesystem::remove_all(folder_); }

  std::string key_file(const std::string& name, const std::string& keys) const {
    const std::filesystem::path path = folder_ / name;
    std::ofstream(path) << keys;
    std::filesystem::permissions(path, std::filesystem::perms::owner_read);
    return path.string();
  }

  void connect(const std::vector<std::string>& transports, const std::string& key = {},
               const std::string& keys = {}) {
    Options options = EndpointPlan{}.options();
    options.transports = transports;
    if (!key.empty()) options.key_file = key_file("dials", key);
    auto dials = Endpoint::create(options);
    if (!keys.empty()) options.key_file = key_file("owns", keys);
    auto owns = Endpoint::create(options);
    ASSERT_TRUE(is_ok(status_of(dials)));
    ASSERT_TRUE(is_ok(status_of(owns)));
    peer_.emplace(std::move(*dials));
    owner_.emplace(std::move(*owns));
    auto connected = peer_->connect(owner_->address(), owner_->port(), kLimit);
    ASSERT_TRUE(is_ok(status_of(connected)));
    connection_ = std::move(*connected);
    source_.emplace(*peer_, kSize);
  }

  MemoryRegion own(Pages& pages, const RegionOptions& options) {
    fill(pages.bytes(), 7);
    auto region = owner_->register_memory(pages.data(), pages.size(), options);
    EXPECT_TRUE(is_ok(status_of(region)));
    return region ? std::move(*region) : MemoryRegion();
  }

  Status move(const RegionDescriptor& to, bool write, std::size_t size) {
    const auto id = connection_->import_region(to);
    if (!id) return status_of(id);
    const LocalSpan here = source_->span(0, size);
    const RemoteSpan there{*id, to.address, size};
    return (write ? connection_->write(here, there) : connection_->read(here, there)).wait(kLimit);
  }

  /// That `region` can be read and not written: small and large.
  void expect_read_only(const MemoryRegion& region, Pages& pages) {
    for (const std::size_t size : {std::size_t{8}, kSize}) {
      fill(source_->pages.bytes(), 1);
      const Status written = move(region.descriptor(), true, size);
      ASSERT_TRUE(is_error(written, {ErrorCode::kPermissionDenied}));
      EXPECT_THAT(written.error().message, HasSubstr("read-only"));
      EXPECT_EQ(difference(pages.bytes(), 7), std::nullopt);
      ASSERT_TRUE(is_ok(move(region.descriptor(), false, size)));
      EXPECT_EQ(difference(source_->part(0, size), 7), std::nullopt);
    }
  }

  const std::filesystem::path folder_ = [] {
    auto path = std::filesystem::temp_directory_path() / fmt::format("p2p-rights-{}", ::getpid());
    std::filesystem::create_directory(path);
    return path;
  }();
  std::optional<Endpoint> peer_;
  std::optional<Endpoint> owner_;
  std::optional<Connection> connection_;
  std::optional<OwnRegion> source_;
};

TEST_F(RightsTest, ReadOnlyRegionsAreReadAndNotWritten) {
  for (const auto& transports : std::vector<std::vector<std::string>>{
           {"tcp"}, {"loopback"}, {"cma", "tcp"}, {"loopback", "cma", "tcp"}}) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(transports, ",")));
    ASSERT_NO_FATAL_FAILURE(connect(transports));
    Pages pages(kSize);
    const MemoryRegion region = own(pages, {.read_only = true, .peers = {}});
    expect_read_only(region, pages);
    Pages open(kSize);
    const MemoryRegion other = own(open, {});
    EXPECT_TRUE(is_ok(move(other.descriptor(), true, kSize))) << "the connection must be unharmed";
    EXPECT_EQ(difference(open.bytes(), 1), difference(source_->pages.bytes(), 1));
    source_.reset();
    connection_.reset();
  }
}

TEST_F(RightsTest, WhereAPeerReachesMemoryByItselfNothingIsReadOnly) {
  ASSERT_NO_FATAL_FAILURE(connect({"cma"}));
  Pages pages(kSize);
  const auto region = owner_->register_memory(pages.data(), pages.size(), {.read_only = true, .peers = {}});
  ASSERT_TRUE(is_error(status_of(region), {ErrorCode::kUnavailable}));
  EXPECT_THAT(region.error().message, HasSubstr("cma: the region is read-only"));
}

TEST_F(RightsTest, MessagesAreNotReceivedIntoReadOnlyRegions) {
  ASSERT_NO_FATAL_FAILURE(connect({"tcp"}));
  Pages pages(kSize);
  const MemoryRegion region = own(pages, {.read_only = true, .peers = {}});
  const auto accepted = owner_->accept(kLimit);
  ASSERT_TRUE(is_ok(status_of(accepted)));
  const Status received = accepted->recv(region.span()).wait(kLimit);
  ASSERT_TRUE(is_error(received, {ErrorCode::kPermissionDenied}));
  EXPECT_THAT(received.error().message, HasSubstr("read-only"));
  EXPECT_EQ(difference(pages.bytes(), 7), std::nullopt);
}

TEST_F(RightsTest, NamedPeersAloneUseARegion) {
  const std::string one = "decode-1:the secret of the first one\n";
  const std::string two = "decode-2:the secret of the second one\n";
  for (const auto& transports :
       std::vector<std::vector<std::string>>{{"tcp"}, {"loopback"}, {"cma"}, {"cma", "tcp"}}) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(transports, ",")));
    ASSERT_NO_FATAL_FAILURE(connect(transports, one, two + one));
    Pages theirs(kSize);
    Pages ours(kSize);
    const MemoryRegion for_two = own(theirs, {.read_only = false, .peers = {"decode-2"}});
    const MemoryRegion for_one = own(ours, {.read_only = false, .peers = {"decode-2", "decode-1"}});
    fill(source_->pages.bytes(), 1);
    for (const bool write : {true, false}) {
      const Status moved = move(for_two.descriptor(), write, kSize);
      ASSERT_TRUE(is_error(moved, {ErrorCode::kPermissionDenied}));
      EXPECT_THAT(moved.error().message, HasSubstr("'decode-1' is none of them"));
      EXPECT_EQ(difference(theirs.bytes(), 7), std::nullopt);
      EXPECT_EQ(difference(source_->pages.bytes(), 1), std::nullopt);
    }
    ASSERT_TRUE(is_ok(move(for_one.descriptor(), true, kSize)));
    EXPECT_EQ(difference(ours.bytes(), 1), std::nullopt);
    source_.reset();
    connection_.reset();
    std::filesystem::remove(folder_ / "dials");
    std::filesystem::remove(folder_ / "owns");
  }
}

TEST_F(RightsTest, NobodyUsesARegionThatHasExpired) {
  constexpr std::chrono::milliseconds kShort{30};
  for (const auto& transports : std::vector<std::vector<std::string>>{
           {"tcp"}, {"loopback"}, {"cma", "tcp"}, {"loopback", "cma", "tcp"}}) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(transports, ",")));
    ASSERT_NO_FATAL_FAILURE(connect(transports));
    Pages lasting(kSize);
    const MemoryRegion other = own(lasting, {.peers = {}, .expires = std::chrono::hours(1)});
    fill(source_->pages.bytes(), 1);
    ASSERT_TRUE(is_ok(move(other.descriptor(), true, kSize)));
    EXPECT_EQ(difference(lasting.bytes(), 1), std::nullopt);

    Pages pages(kSize);
    const auto start = std::chrono::steady_clock::now();
    const MemoryRegion region = own(pages, {.peers = {}, .expires = kShort});
    Status moved;
    ASSERT_TRUE(eventually([&] { return !(moved = move(region.descriptor(), true, 8)); }));
    EXPECT_GE(std::chrono::steady_clock::now() - start, kShort);
    EXPECT_THAT(moved.error().message,
                HasSubstr(fmt::format("region {}: it has expired", static_cast<std::uint32_t>(region.id()))));
    fill(pages.bytes(), 7);
    fill(source_->pages.bytes(), 2);
    for (const std::size_t size : {std::size_t{8}, kSize}) {
      for (const bool write : {true, false}) {
        ASSERT_TRUE(is_error(move(region.descriptor(), write, size), {ErrorCode::kPermissionDenied}));
      }
    }
    EXPECT_EQ(difference(pages.bytes(), 7), std::nullopt);
    EXPECT_EQ(difference(source_->pages.bytes(), 2), std::nullopt);

    const Connection back = owner_->accept(kLimit).value();
    const auto id = back.import_region(source_->region.descriptor());
    ASSERT_TRUE(is_ok(status_of(id)));
    ASSERT_TRUE(
        is_ok(back.write(region.span(), {*id, source_->region.descriptor().address, kSize}).wait(kLimit)))
        << "the owner's own transfers are free";
    EXPECT_EQ(difference(source_->pages.bytes(), 7), std::nullopt);
    source_.reset();
    connection_.reset();
  }
}

// Whoever asks for a region that has expired is told neither place nor key, and why.
TEST_F(RightsTest, ARegionThatHasExpiredIsNotToldOf) {
  ASSERT_NO_FATAL_FAILURE(connect({"cma", "tcp"}));
  Pages pages(kSize);
  const MemoryRegion region = own(pages, {.peers = {}, .expires = std::chrono::nanoseconds(1)});
  const auto id = connection_->import_region(region.descriptor());
  ASSERT_TRUE(is_ok(status_of(id)));
  const Status told = connection_->wait_imported(*id, kLimit);
  ASSERT_TRUE(is_error(told, {ErrorCode::kPermissionDenied}));
  EXPECT_THAT(told.error().message, HasSubstr("the owner says: region 1: it has expired"));
}

TEST_F(RightsTest, WhereAPeerReachesMemoryByItselfNothingExpires) {
  ASSERT_NO_FATAL_FAILURE(connect({"cma"}));
  Pages pages(kSize);
  const auto region =
      owner_->register_memory(pages.data(), pages.size(), {.peers = {}, .expires = std::chrono::hours(1)});
  ASSERT_TRUE(is_error(status_of(region), {ErrorCode::kUnavailable}));
  EXPECT_THAT(region.error().message, HasSubstr("cma: the region expires"));
}

TEST_F(RightsTest, ARegionExpiresInTimeToCome) {
  ASSERT_NO_FATAL_FAILURE(connect({"tcp"}));
  Pages pages(kSize);
  for (const std::chrono::seconds never : {std::chrono::seconds(0), std::chrono::seconds(-1)}) {
    const auto region = owner_->register_memory(pages.data(), pages.size(), {.peers = {}, .expires = never});
    EXPECT_TRUE(is_error(status_of(region), {ErrorCode::kInvalidArgument}));
  }
}

TEST_F(RightsTest, MessagesAreNotReceivedIntoRegionsThatHaveExpired) {
  ASSERT_NO_FATAL_FAILURE(connect({"tcp"}));
  Pages pages(kSize);
  const auto accepted = owner_->accept(kLimit);
  ASSERT_TRUE(is_ok(status_of(accepted)));
  MemoryRegion region;
  Transfer posted;
  std::chrono::milliseconds lasts{50};
  do {  // one that was refused is done
    lasts *= 2;
    region = own(pages, {.peers = {}, .expires = lasts});
    posted = accepted->recv(region.span());
  } while (posted.done());
  ASSERT_TRUE(eventually([&] { return !move(region.descriptor(), false, 8); }));
  fill(pages.bytes(), 7);
  const Transfer sent = connection_->send(source_->span(0, kSize));
  for (const Transfer& one : {posted, sent}) {
    const Status ended = one.wait(kLimit);
    ASSERT_TRUE(is_error(ended, {ErrorCode::kPermissionDenied}));
    EXPECT_THAT(ended.error().message, HasSubstr("expired"));
  }
  const Status late = accepted->recv(region.span()).wait(kLimit);
  ASSERT_TRUE(is_error(late, {ErrorCode::kPermissionDenied}));
  EXPECT_THAT(late.error().message, HasSubstr("expired"));
  EXPECT_EQ(difference(pages.bytes(), 7), std::nullopt);
}

TEST_F(RightsTest, NamesAskForProof) {
  ASSERT_NO_FATAL_FAILURE(connect({"tcp"}));
  Pages pages(kSize);
  const auto region =
      owner_->register_memory(pages.data(), pages.size(), {.read_only = false, .peers = {"decode-1"}});
  ASSERT_TRUE(is_error(status_of(region), {ErrorCode::kInvalidArgument}));
  EXPECT_THAT(region.error().message, HasSubstr("key file or certificates"));
}

// In a user namespace of its own a process may not read the other's memory, which may read its.
TEST(RouteTest, TellsTheCauseHereAndNotThatThePeerHeardOfIt) {
  const Peer peer({.transport = "cma,tcp"});
  const ProcessEnd end = in_child([&] {
    if (::unshare(CLONE_NEWUSER) != 0) return 2;
    Endpoint here = make_endpoint({.transport = "cma,tcp"});
    const auto connection = here.connect(peer.address(), peer.port(), kLimit);
    const auto told = [&] {
      const std::vector<Route> routes = connection->routes();
      return routes.front().transport == "tcp" &&
             routes.front().reason.find("not permitted") != std::string::npos;
    };
    return connection && eventually(told) ? 0 : 1;
  });
  if (end.code == 2) GTEST_SKIP() << "no user namespaces here";
  EXPECT_EQ(end, ProcessEnd{.code = 0});
}

TEST_F(RightsTest, MessagesReachARegionThatIsRegisteredAgain) {
  connect({"tcp"});
  const auto other = owner_->accept(kLimit);
  ASSERT_TRUE(is_ok(status_of(other)));
  Pages pages(kSize);
  RegionOptions options;
  for (int round = 0; round != 4; ++round) {
    MemoryRegion region = own(pages, options);
    const Transfer receive = other->recv(LocalSpan{region.id(), pages.data(), kSize});
    const Transfer send = connection_->send(source_->span(0, kSize));
    ASSERT_TRUE(is_ok(send.wait(kLimit))) << "round " << round;
    ASSERT_TRUE(is_ok(receive.wait(kLimit)));
    options.again = region.descriptor();
    ASSERT_TRUE(is_ok(region.release(kLimit)));
  }
}

// The acceptor cannot make the rings of cma, and to the connector it closed.
TEST(RouteTest, TellsThePeersCauseAndNotThatItClosed) {
  auto child = Process::forked([](const Process::Say& say) {
    const Endpoint here = make_endpoint({.transport = "cma,tcp"});
    if (!forbid(SYS_memfd_create, EPERM)) return 2;
    say(std::to_string(here.port()));
    return ::pause();
  });
  ASSERT_TRUE(child);
  const auto said = child->read_line(kLimit);
  if (!said && child->wait(kLimit).code == 2) GTEST_SKIP() << "no filter can be set here";
  ASSERT_TRUE(is_ok(status_of(said)));
  Endpoint here = make_endpoint({.transport = "cma,tcp"});
  const auto connection = here.connect("127.0.0.1", static_cast<std::uint16_t>(std::stoi(*said)), kLimit);
  std::string told;
  const auto tells = [&] {
    told = connection->routes().front().reason;
    return told.find("cma: the peer gave it up: ") != std::string::npos &&
           told.find("memfd_create") != std::string::npos;
  };
  EXPECT_TRUE(connection && eventually(tells)) << told;
}

}  // namespace
}  // namespace p2p::testing::rights
