// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/transfer/region_exchange.h"

#include <gtest/gtest.h>
#include <malloc.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <new>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "engine/connection.h"
#include "engine/endpoint.h"
#include "support/eventually.h"

#if defined(P2P_ASAN) || defined(P2P_TSAN)
extern "C" std::size_t
__sanitizer_get_current_allocated_bytes();  // the compiler's, which has no header for it
#endif

namespace p2p::engine {
namespace {

using namespace std::chrono_literals;

using testing::eventually;

/// Bytes that the program has on the heap.
std::size_t allocated() {
#if defined(P2P_ASAN) || defined(P2P_TSAN)
  return __sanitizer_get_current_allocated_bytes();
#else
  return mallinfo2().uordblks;
#endif
}

constexpr MemoryPlace kDevice{MemoryKind::kCuda, 0};

/// What a transport was asked to do.
struct Asked {
  std::atomic<int> importing{0};  // begun
  std::atomic<int> telling{0};    // the same, of regions' keys
  std::optional<std::shared_future<void>>
      tell;                     // no sooner, of regions of a device that are added from now on
  std::atomic<int> warming{0};  // the same, of first uses
  std::optional<std::shared_future<void>> warm;  // no sooner
  std::atomic<bool> exhausted{false};  // there is no memory for the next key that is told or imported
};

void take_memory(Asked& asked) {
  if (asked.exhausted.exchange(false)) throw std::bad_alloc();
}

// Tells of its memory no sooner than it is told to.
class SlowRegistration : public Registration {
 public:
  SlowRegistration(std::shared_ptr<Registration> registration, const RegionInfo& region,
                   std::shared_ptr<Asked> asked)
      : Registration(region),
        registration_(std::move(registration)),
        asked_(std::move(asked)),
        go_(*asked_->tell) {}
  ~SlowRegistration() override { registration_->revoke(); }

  std::vector<std::byte> export_key() const override {
    asked_->telling.fetch_add(1);
    go_.wait();
    take_memory(*asked_);
    return registration_->export_key();
  }

 private:
  const std::shared_ptr<Registration> registration_;
  const std::shared_ptr<Asked> asked_;
  const std::shared_future<void> go_;
};

// Loopback that takes host memory for a device's, and imports no sooner than it is told to.
class SlowTransport : public Transport {
 public:
  SlowTransport(std::unique_ptr<Transport> transport, std::shared_future<void> go,
                std::shared_ptr<Asked> asked)
      : transport_(std::move(transport)), go_(std::move(go)), asked_(std::move(asked)) {}

  std::string_view name() const override { return "slow"; }
  Capabilities capabilities() const override {
    Capabilities capabilities = transport_->capabilities();
    capabilities.needs_exported_key = true;
    capabilities.slow_import = true;
    return capabilities;
  }
  Status probe() const override { return {}; }
  bool carries(MemoryPlace, MemoryPlace) const override { return true; }
  std::vector<Rail> rails(const PeerPath& path) const override { return transport_->rails(path); }
  unsigned channels_per_rail(const Rail&) const override { return 1; }
  Result<std::shared_ptr<Registration>> register_memory(const RegionInfo& region) override {
    RegionInfo host = region;
    host.place = {};
    auto registration = transport_->register_memory(host);
    if (!registration || !asked_->tell || region.place.kind == MemoryKind::kHost) return registration;
    return std::make_shared<SlowRegistration>(std::move(*registration), host, asked_);
  }
  void revoke_memory(const Registration& registration) override { transport_->revoke_memory(registration); }
  Result<std::unique_ptr<RemoteKey>> import_region(const RegionInfo& region,
                                                   std::span<const std::byte> exported) override {
    asked_->importing.fetch_add(1);
    go_.wait();
    take_memory(*asked_);
    return transport_->import_region(region, exported);
  }
  void warm_up(const RemoteKey&) override {
    asked_->warming.fetch_add(1);
    if (asked_->warm) asked_->warm->wait();
  }
  Result<std::unique_ptr<Channel>> open_channel(const ChannelSetup& setup) override {
    return transport_->open_channel(setup);
  }

 private:
  const std::unique_ptr<Transport> transport_;
  const std::shared_future<void> go_;
  const std::shared_ptr<Asked> asked_;
};

class SlowImports : public ::testing::Test {
 protected:
  static constexpr std::size_t kBytes = 100'000;

  void SetUp() override {
    const auto all = builtin_transports().entries;
    const auto loopback =
        std::find_if(all.begin(), all.end(), [](const auto& entry) { return entry.name == "loopback"; });
    ASSERT_NE(loopback, all.end());
    const auto registry = [&](const std::shared_future<void>& go) {
      return TransportRegistry{
          {{"slow", [go, asked = asked_, make = loopback->make](const Options& options, const auto& devices) {
              return std::make_unique<SlowTransport>(make(options, devices), go, asked);
            }}}};
    };
    std::promise<void> at_once;
    at_once.set_value();
    here_ = Endpoint::create(options_, registry(go_.get_future().share())).value();
    there_ = Endpoint::create(options_, registry(at_once.get_future().share())).value();
    connection_ = here_->connect("127.0.0.1", there_->port(), 10s, std::nullopt);
    ASSERT_TRUE(connection_->wait_open(10s));
    accepted_ = there_->accept(10s).value();
    std::iota(reinterpret_cast<unsigned char*>(source_.data()),
              reinterpret_cast<unsigned char*>(source_.data()) + kBytes, static_cast<unsigned char>(3));
    local_ = here_->context().regions->add(source_.data(), kBytes, {}).value();
    remote_ = there_->context().regions->add(target_.data(), kBytes, kDevice).value();
    id_ = connection_->import_region(descriptor()).value();
  }

  // Regions and their table hold each other until they are taken back.
  void TearDown() override {
    if (!released_) go_.set_value();
    for (const auto& region : {local_, remote_}) {
      if (region) static_cast<void>(region->revoke(std::chrono::steady_clock::now()));
    }
  }

  void release() {
    released_ = true;
    go_.set_value();
  }

  RegionDescriptor descriptor() const { return descriptor(*remote_); }

  static RegionDescriptor descriptor(const Region& region) {
    const RegionInfo& info = region.info();
    return {reinterpret_cast<std::uintptr_t>(info.base),
            info.size,
            info.place,
            info.id,
            info.key,
            region.incarnation()};
  }

  std::shared_ptr<TransferState> write() {
    const std::vector<LocalSpan> from{{local_->info().id, source_.data(), kBytes}};
    const std::vector<RemoteSpan> to{{id_, reinterpret_cast<std::uintptr_t>(target_.data()), kBytes}};
    return connection_->transfers()->start(Operation::kWrite, from, to, {});
  }

  Options options_ = [] {
    Options options;
    options.listen_address = "127.0.0.1";
    return options;
  }();
  std::promise<void> go_;
  std::shared_ptr<Asked> asked_ = std::make_shared<Asked>();
  bool released_ = false;
  std::vector<std::byte> source_ = std::vector<std::byte>(kBytes);
  std::vector<std::byte> target_ = std::vector<std::byte>(kBytes);
  std::unique_ptr<Endpoint> there_;
  std::unique_ptr<Endpoint> here_;
  std::shared_ptr<Connection> connection_;
  std::shared_ptr<Connection> accepted_;
  std::shared_ptr<Region> local_;
  std::shared_ptr<Region> remote_;
  RemoteRegionId id_{};
};

TEST_F(SlowImports, HoldUpNothingButTheirTransfers) {
  const auto pending = write();
  ASSERT_TRUE(accepted_->notify("meanwhile")->wait(10s));
  EXPECT_TRUE(
      eventually([&] { return connection_->take_notifications() == std::vector<std::string>{"meanwhile"}; }));
  EXPECT_FALSE(pending->done());
  release();
  const Status written = pending->wait(10s);
  ASSERT_TRUE(written) << written.error().message;
  EXPECT_EQ(target_, source_);
}

// The peer's session answers others meanwhile.
TEST_F(SlowImports, AnswersHoldUpNothingElse) {
  release();
  std::promise<void> tell;
  asked_->tell = tell.get_future().share();
  std::vector<std::byte> more(kBytes);
  const auto slow = there_->context().regions->add(more.data(), kBytes, kDevice).value();
  const auto quick = there_->context().regions->add(source_.data(), kBytes, {}).value();
  const auto slow_id = connection_->import_region(descriptor(*slow)).value();
  EXPECT_TRUE(eventually([&] { return asked_->telling.load() == 1; }));
  const auto quick_id = connection_->import_region(descriptor(*quick)).value();
  EXPECT_TRUE(connection_->wait_imported(quick_id, 10s));
  EXPECT_FALSE(connection_->wait_imported(slow_id, 0s));
  tell.set_value();
  EXPECT_TRUE(connection_->wait_imported(slow_id, 10s));
  for (const auto& region : {slow, quick}) {
    EXPECT_TRUE(region->revoke(std::chrono::steady_clock::now() + 10s));
  }
}

TEST_F(SlowImports, FailWhereThisSideRunsOutOfMemory) {
  const auto pending = write();
  asked_->exhausted = true;
  release();
  const Status written = pending->wait(10s);
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, ErrorCode::kSystem);
  EXPECT_NE(written.error().message.find("out of memory"), std::string::npos) << written.error().message;
}

TEST_F(SlowImports, FailWhereTheirOwnerRunsOutOfMemory) {
  release();
  ASSERT_TRUE(connection_->wait_imported(id_, 10s));
  std::promise<void> at_once;
  at_once.set_value();
  asked_->tell = at_once.get_future().share();
  asked_->exhausted = true;
  std::vector<std::byte> more(kBytes);
  const auto region = there_->context().regions->add(more.data(), kBytes, kDevice).value();
  const Status imported =
      connection_->wait_imported(connection_->import_region(descriptor(*region)).value(), 10s);
  ASSERT_FALSE(imported);
  EXPECT_EQ(imported.error().code, ErrorCode::kSystem);
  EXPECT_NE(imported.error().message.find("out of memory"), std::string::npos) << imported.error().message;
  EXPECT_TRUE(region->revoke(std::chrono::steady_clock::now() + 10s));
}

TEST_F(SlowImports, ARegionIsNotFreeWhileItWarmsUp) {
  std::promise<void> warm;
  asked_->warm = warm.get_future().share();
  release();
  ASSERT_TRUE(write()->wait(10s));
  ASSERT_TRUE(eventually([&] { return asked_->warming.load() == 1; }));
  EXPECT_FALSE(remote_->revoke(std::chrono::steady_clock::now() + 50ms)) << "it warms up";
  warm.set_value();
  EXPECT_TRUE(remote_->revoke(std::chrono::steady_clock::now() + 10s));
}

TEST_F(SlowImports, ComeTooLateForARegionThatWasTakenBack) {
  const auto pending = write();
  ASSERT_TRUE(eventually([&] { return asked_->importing.load() == 1; }));
  EXPECT_FALSE(remote_->revoke(std::chrono::steady_clock::now() + 50ms)) << "the import may read it";
  const Status refused = pending->wait(10s);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kNotFound);
  release();
  EXPECT_TRUE(remote_->revoke(std::chrono::steady_clock::now() + 10s));
  EXPECT_FALSE(write()->wait(10s));
}

// Regions that come and go leave nothing behind, neither within a connection nor from one to the next.
TEST_F(SlowImports, AreForgottenWithTheirRegions) {
  release();
  ASSERT_TRUE(connection_->wait_imported(id_, 10s));
  RemoteRegionId latest{};
  for (int round = 0; round < 3000; ++round) {
    const auto region = there_->context().regions->add(target_.data(), 100, {}).value();
    latest = connection_->import_region(descriptor(*region)).value();
    ASSERT_TRUE(connection_->wait_imported(latest, 10s));
    ASSERT_TRUE(region->revoke(std::chrono::steady_clock::now() + 10s));
  }
  EXPECT_EQ(
      connection_->wait_imported(latest, 10s).error().message,
      fmt::format("use remote region {}: its owner deregistered it, or its memory was freed or unmapped",
                  3001));
  const auto first = RemoteRegionId{2};
  EXPECT_EQ(connection_->wait_imported(first, 10s).error().code, ErrorCode::kNotFound);
  const auto write_to = [&](RemoteRegionId id) {
    const std::vector<LocalSpan> from{{local_->info().id, source_.data(), 1}};
    const std::vector<RemoteSpan> to{{id, reinterpret_cast<std::uintptr_t>(target_.data()), 1}};
    return connection_->transfers()->start(Operation::kWrite, from, to, {})->wait(10s);
  };
  EXPECT_EQ(write_to(first).error().code, ErrorCode::kNotFound);
  EXPECT_TRUE(write_to(id_)) << "the one that stayed is known";
}

TEST_F(SlowImports, KeepWhatTheirTransfersWillReadFrom) {
  const auto pending = write();
  ASSERT_TRUE(local_->revoke(std::chrono::steady_clock::now() + 10s));
  EXPECT_FALSE(local_->wait_unused(std::chrono::steady_clock::now() + 10ms));
  EXPECT_FALSE(write()->wait(10s)) << "the region was taken back";
  release();
  const Status written = pending->wait(10s);
  ASSERT_TRUE(written) << written.error().message;
  EXPECT_EQ(target_, source_);
  EXPECT_TRUE(local_->wait_unused(std::chrono::steady_clock::now() + 10s));
}

TEST_F(SlowImports, LetGoOfTheMemoryOfACancelledTransfer) {
  const auto pending = write();
  pending->cancel();
  EXPECT_EQ(pending->wait(10s).error().code, ErrorCode::kCancelled);
  EXPECT_TRUE(local_->wait_unused(std::chrono::steady_clock::now() + 10s));
}

TEST_F(SlowImports, CanBeWaitedFor) {
  EXPECT_EQ(connection_->wait_imported(id_, 10ms).error().code, ErrorCode::kTimedOut);
  EXPECT_EQ(connection_->wait_imported(RemoteRegionId{7777}, 10s).error().code, ErrorCode::kNotFound);
  release();
  const Status usable = connection_->wait_imported(id_, 10s);
  EXPECT_TRUE(usable) << usable.error().message;
  ASSERT_TRUE(remote_->revoke(std::chrono::steady_clock::now() + 10s));
  EXPECT_EQ(connection_->wait_imported(id_, 10s).error().code, ErrorCode::kNotFound);
}

// What a region knows of those who imported it goes with their connections.
TEST_F(SlowImports, ReconnectsLeaveMemoryFlat) {
  constexpr std::size_t kRegions = 500;
  constexpr std::size_t kPiece = 100;
  constexpr int kRounds = 60;
  release();
  std::vector<std::shared_ptr<Region>> regions;
  for (std::size_t i = 0; i < kRegions; ++i) {
    regions.push_back(there_->context().regions->add(target_.data() + i * kPiece, kPiece, {}).value());
  }
  std::size_t early = 0;
  for (int round = 0; round < kRounds; ++round) {
    const auto connection = here_->connect("127.0.0.1", there_->port(), 10s, std::nullopt);
    ASSERT_TRUE(connection->wait_open(10s));
    const auto accepted = there_->accept(10s).value();
    for (const auto& region : regions) {
      const auto id = connection->import_region(descriptor(*region));
      ASSERT_TRUE(connection->wait_imported(id.value(), 10s));
    }
    ASSERT_TRUE(connection->close(10s));
    ASSERT_TRUE(eventually([&] { return here_->connections().size() + there_->connections().size() == 2; }));
    if (round == kRounds / 3) early = allocated();
  }
  // 50 bytes of each region and connection were 1 MB.
  EXPECT_LT(allocated(), early + 200'000);
  for (const auto& region : regions) EXPECT_TRUE(region->revoke(std::chrono::steady_clock::now() + 10s));
}

TEST_F(SlowImports, FirstListOverManyRegionsIsLookedAtOnce) {
  constexpr std::size_t kRegions = 20'000;
  constexpr std::size_t kPiece = 4;
  static_assert(kRegions * kPiece <= kBytes);
  release();
  std::vector<std::shared_ptr<Region>> regions;
  std::vector<LocalSpan> from;
  std::vector<RemoteSpan> to;
  for (std::size_t i = 0; i < kRegions; ++i) {
    std::byte* const item = target_.data() + i * kPiece;
    regions.push_back(there_->context().regions->add(item, kPiece, {}).value());
    from.push_back({local_->info().id, source_.data() + i * kPiece, kPiece});
    const auto id = connection_->import_region(descriptor(*regions.back()));
    to.push_back({id.value(), reinterpret_cast<std::uintptr_t>(item), kPiece});
  }
  using Clock = std::chrono::steady_clock;
  const auto worked = [] {  // by this thread, however busy others keep the machine
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
  };
  Reactor& reactor = *here_->context().reactor;
  std::atomic<std::chrono::nanoseconds> longest{};
  std::optional<std::chrono::nanoseconds> last;
  std::function<void()> tick = [&] {
    if (last) longest = std::max(longest.load(), worked() - *last);
    last = worked();
    reactor.after(10ms, tick);
  };
  reactor.post([&] { tick(); });
  const auto list = connection_->transfers()->start(Operation::kWrite, from, to, {});
  const Status written = list->wait(60s);
  // To look at the list again for each answer took minutes, and kept timers waiting for seconds.
  EXPECT_LT(longest.load(), options_.keepalive / 2);
  EXPECT_TRUE(written) << written.error().message;
  EXPECT_TRUE(std::equal(source_.begin(), source_.begin() + kRegions * kPiece, target_.begin()));
  for (const auto& region : regions) EXPECT_TRUE(region->revoke(Clock::now() + 10s));
  connection_.reset();
  here_.reset();  // what ticks is of this function
}

TEST_F(SlowImports, EndWithTheirEndpoint) {
  const auto pending = write();
  std::thread closing([&] { here_.reset(); });
  EXPECT_FALSE(pending->wait(20s));
  release();
  closing.join();
}

/// Two endpoints with a transport that asks no owner.
class ImportsWithoutQuestions : public ::testing::Test {
 protected:
  void SetUp() override {
    Options options;
    options.listen_address = "127.0.0.1";
    options.transports = {"tcp"};
    here_ = Endpoint::create(options, builtin_transports()).value();
    there_ = Endpoint::create(options, builtin_transports()).value();
    connection_ = here_->connect("127.0.0.1", there_->port(), 10s, std::nullopt);
    ASSERT_TRUE(connection_->wait_open(10s));
    accepted_ = there_->accept(10s).value();
  }

  std::shared_ptr<Region> add(const RegionOptions& options = {}) {
    return there_->context().regions->add(memory_.data(), memory_.size(), {}, options).value();
  }

  static RegionDescriptor descriptor(const Region& region) {
    const RegionInfo& info = region.info();
    const auto address = reinterpret_cast<std::uintptr_t>(info.base);
    return {address, info.size, info.place, info.id, info.key, region.incarnation()};
  }

  RemoteRegionId id_of(const std::shared_ptr<Region>& region, bool again = false) {
    return connection_->import_region(descriptor(*region), again).value();
  }

  static void tell(Connection& from, Connection& to) {
    ASSERT_TRUE(from.notify("met")->wait(10s));
    EXPECT_TRUE(eventually([&] { return !to.take_notifications().empty(); }));
  }

  /// What the peer had to say is handled here, and its answers to the questions that it raised.
  void meet() {
    tell(*accepted_, *connection_);
    tell(*connection_, *accepted_);
    tell(*accepted_, *connection_);
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>(100);
  std::unique_ptr<Endpoint> here_;
  std::unique_ptr<Endpoint> there_;
  std::shared_ptr<Connection> connection_;
  std::shared_ptr<Connection> accepted_;
};

TEST_F(ImportsWithoutQuestions, AreForgottenWithTheirRegions) {
  const auto stays = add();
  const RemoteRegionId kept = id_of(stays);
  RemoteRegionId latest{};
  for (int round = 0; round < 3000; ++round) {
    const auto region = add();
    latest = id_of(region);
    ASSERT_TRUE(connection_->wait_imported(latest, 10s));
    ASSERT_TRUE(region->revoke(std::chrono::steady_clock::now() + 10s));
  }
  EXPECT_TRUE(eventually([&] {
    const Status usable = connection_->wait_imported(latest, 10s);
    return !usable && usable.error().code == ErrorCode::kNotFound;
  }));
  const Status early = connection_->wait_imported(RemoteRegionId{to_underlying(kept) + 1}, 10s);
  ASSERT_FALSE(early);
  EXPECT_NE(early.error().message.find("none was imported"), std::string::npos) << early.error().message;
  EXPECT_TRUE(connection_->wait_imported(kept, 10s)) << "the one that stayed is known";
  ASSERT_TRUE(stays->revoke(std::chrono::steady_clock::now() + 10s));
}

// The connection's end says why. An answer without keys, which comes before it, would say that there is no
// way.
TEST_F(ImportsWithoutQuestions, AreNotAnsweredWithoutKeysOnceTheConnectionEnds) {
  const auto region = add();
  const std::shared_ptr<Context> context(std::shared_ptr<void>(), &there_->context());
  const auto router = std::make_shared<Router>(context->transports());
  std::vector<wire::RegionAnswer> said;
  const auto answers = std::make_shared<RegionAnswers>(context, router, [&](const wire::Message& message) {
    said.push_back(std::get<wire::RegionAnswer>(message));
  });
  const wire::RegionQuery query{7, to_underlying(region->info().id), region->info().key};
  router->await(0);
  answers->on(query);
  ASSERT_EQ(said.size(), 1U);
  EXPECT_EQ(said[0].keys.size(), 1U);
  router->close_all("closed");
  answers->on(query);
  EXPECT_EQ(said.size(), 1U);
  answers->close(std::make_shared<Fence>(*context->reactor, 1s));
  ASSERT_TRUE(region->revoke(std::chrono::steady_clock::now() + 10s));
}

// Nor does this side take an answer for one that names no way, when it is its own end that closed them.
TEST_F(ImportsWithoutQuestions, WaitForTheCauseOnceTheConnectionEnds) {
  const auto region = add();
  const std::shared_ptr<Context> context(std::shared_ptr<void>(), &here_->context());
  const auto router = std::make_shared<Router>(context->transports());
  router->close_all("closed");
  const auto imports = std::make_shared<RegionExchange>(context, router, [](const wire::Message&) {});
  imports->set_peer(region->incarnation());
  imports->start();
  const RemoteRegionId id = imports->import(descriptor(*region)).value();
  EXPECT_EQ(imports->wait(id, 0s).error().code, ErrorCode::kTimedOut);
  imports->close({ErrorCode::kPeerGone, "the peer is gone"}, std::make_shared<Fence>(*context->reactor, 1s));
  EXPECT_EQ(imports->wait(id, 0s).error().code, ErrorCode::kPeerGone);
  ASSERT_TRUE(region->revoke(std::chrono::steady_clock::now() + 10s));
}

// The word that a region has ended is slower than the application that tells of its successor of the same
// name.
TEST_F(ImportsWithoutQuestions, LiveWhereTheirRegionIsThereAgain) {
  std::shared_ptr<Region> region = add();
  RemoteRegionId id = id_of(region);
  for (int round = 0; round < 1000; ++round) {
    ASSERT_TRUE(region->revoke(std::chrono::steady_clock::now() + 10s));
    if (round % 3 == 1) meet();
    RegionOptions options;
    options.again = descriptor(*region);
    region = add(options);
    id = id_of(region, true);
    if (round % 2 == 1) meet();
    const Status usable = connection_->wait_imported(id, 10s);
    ASSERT_TRUE(usable) << "round " << round << ": " << usable.error().message;
  }
  meet();
  EXPECT_TRUE(connection_->wait_imported(id, 10s));
  ASSERT_TRUE(region->revoke(std::chrono::steady_clock::now() + 10s));
  EXPECT_TRUE(eventually([&] { return !connection_->wait_imported(id, 10s); }));
}

}  // namespace
}  // namespace p2p::engine
