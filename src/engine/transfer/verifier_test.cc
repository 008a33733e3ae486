// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/transfer/verifier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <new>
#include <numeric>
#include <set>
#include <variant>
#include <vector>

#include "base/mutex.h"
#include "base/underlying.h"
#include "base/wire_code.h"
#include "engine/endpoint.h"
#include "engine/transfer/region_answers.h"

namespace p2p::engine {
namespace {

using namespace std::chrono_literals;

using ::testing::HasSubstr;

std::vector<std::byte> pattern(std::size_t size) {
  std::vector<std::byte> bytes(size);
  std::iota(reinterpret_cast<unsigned char*>(bytes.data()),
            reinterpret_cast<unsigned char*>(bytes.data()) + size, static_cast<unsigned char>(5));
  return bytes;
}

RegionInfo info_of(std::vector<std::byte>& bytes) {
  return {RegionId{7}, RegionKey{}, bytes.data(), bytes.size(), {}};
}

class Owner : public RequestOwner {
 public:
  void ended(const Request& request, Status status) override { request.state()->finish(std::move(status)); }
  void reroute(WorkItem /*item*/, const Error& why) override { ADD_FAILURE() << why.message; }
  void reroute_stuck(WorkItem /*item*/, const Error& why) override { ADD_FAILURE() << why.message; }
  void verify(WorkItem /*item*/) override { ADD_FAILURE() << "it is verified here"; }
};

/// Who runs out of memory when he looks at his own.
class Exhausting : public Registration {
 public:
  using Registration::Registration;
  Status check_alive() const override { throw std::bad_alloc(); }
};

/// Counts how often it is asked, which takes a driver's call for memory of a GPU.
class Counting : public Registration {
 public:
  using Registration::Registration;
  Status check_alive() const override { return ++asked, Status{}; }
  mutable std::atomic<int> asked{0};
};

/// A transfer that has landed, of `count` blocks between which a byte lies, and a peer in this process.
class VerifierTest : public ::testing::Test {
 protected:
  void TearDown() override {
    context_->digesting.stop();  // as the endpoint does, before the context ends
  }

  using Peer = std::function<void(const wire::DigestQuery&)>;

  void land(std::size_t count, std::size_t size, const Peer& peer) {
    meet(count * (size + 1), peer);
    land(0, count, size);
  }

  void meet(std::size_t bytes, const Peer& peer) {
    here_ = pattern(bytes);
    there_ = here_;
    if (!registration_) registration_ = std::make_unique<Registration>(info_of(here_));
    key_ = std::make_unique<RemoteKey>(info_of(there_));
    verifier_ = std::make_shared<Verifier>(
        context_, [peer](const wire::Message& message) { peer(std::get<wire::DigestQuery>(message)); });
  }

  /// At byte `at` of the memory.
  void land(std::size_t at, std::size_t count, std::size_t size) {
    auto list = std::make_shared<SegmentList>();
    list->bytes = count * size;
    SegmentList::Portion portion{.segments = {}, .bytes = list->bytes};
    for (std::size_t i = 0; i != count; ++i, at += size + 1) {
      portion.segments.push_back({here_.data() + at, reinterpret_cast<std::uintptr_t>(there_.data()) + at,
                                  size, registration_.get(), key_.get()});
    }
    list->portions.push_back(std::move(portion));
    state_ = std::make_shared<TransferState>(list->bytes);
    const auto request = std::make_shared<Request>(
        owner_, Request::Post{.list = list, .state = state_, .dependency = {}, .notification = {}});
    const SegmentList::Portion& all = list->portions.front();
    verifier_->verify({request, {.segments = all.segments, .bytes = all.bytes}});
  }

  void answer(const wire::DigestQuery& query) {
    std::vector<Digests::Range> ranges;
    auto address = query.addresses.begin();
    for (const wire::DigestRun& run : query.runs) {
      for (std::uint32_t i = 0; i != run.ranges; ++i) {
        ranges.push_back({{reinterpret_cast<const std::byte*>(*address++), run.size}, {}});
      }
    }
    const wire::DigestAnswer said{.query = query.query, .digest = context_->digests->compute(ranges).value()};
    EXPECT_TRUE(verifier_->on(said));
  }

  std::shared_ptr<Context> context_ = std::make_shared<Context>();
  std::shared_ptr<Owner> owner_ = std::make_shared<Owner>();
  std::vector<std::byte> here_;
  std::vector<std::byte> there_;
  std::unique_ptr<Registration> registration_;
  std::unique_ptr<RemoteKey> key_;
  std::shared_ptr<TransferState> state_;
  std::shared_ptr<Verifier> verifier_;
};

TEST_F(VerifierTest, AsksFromOnePlaceOfAThreadHoweverQuicklyThePeerAnswers) {
  constexpr std::size_t kQueries = 20;
  std::size_t asked = 0;
  std::set<void*> frames;
  land(kQueries * wire::kMostDigestRanges, 2, [&](const wire::DigestQuery& query) {
    ++asked;
    frames.insert(__builtin_frame_address(0));
    answer(query);
  });
  EXPECT_TRUE(state_->wait(10s));
  EXPECT_EQ(asked, kQueries);
  static_assert(kQueries > 8);  // more than there may be threads
  EXPECT_LE(frames.size(), digest_threads()) << "each question stands on the stack of the one before";
}

TEST_F(VerifierTest, AsksAboutPartsOfWhatHasLandedSoThatSeveralThreadsHash) {
  constexpr std::size_t kItems = 48, kSize = std::size_t{1} << 20;
  Mutex mutex;
  std::vector<wire::DigestQuery> asked;
  bool answers = false;
  std::promise<void> all_asked;
  meet(kItems * (kSize + 1), [&](const wire::DigestQuery& query) {
    {
      const MutexLock lock(mutex);
      asked.push_back(query);
      if (asked.size() == wire::kMostDigestQueries) all_asked.set_value();
      if (!answers) return;
    }
    answer(query);
  });
  std::vector<std::shared_ptr<TransferState>> transfers;
  for (std::size_t i = 0; i != kItems; ++i) {
    land(i * (kSize + 1), 1, kSize);
    transfers.push_back(state_);
  }
  ASSERT_EQ(all_asked.get_future().wait_for(10s), std::future_status::ready);
  std::vector<wire::DigestQuery> first;
  {
    const MutexLock lock(mutex);
    first = asked;
    answers = true;
  }
  EXPECT_EQ(first.size(), wire::kMostDigestQueries) << "no more than are answered";
  for (const wire::DigestQuery& query : first) answer(query);
  for (const auto& transfer : transfers) EXPECT_TRUE(transfer->wait(10s));
  const MutexLock lock(mutex);
  EXPECT_EQ(asked.size(), first.size() + (kItems - first.size()) / 4) << "of 4 MiB each";
}

TEST_F(VerifierTest, AsksOnceAQuestionWhetherMemoryIsThere) {
  constexpr std::size_t kCount = 1000, kSize = 2;
  here_ = pattern(kCount * (kSize + 1));
  auto counting = std::make_unique<Counting>(info_of(here_));
  const Counting& registration = *counting;
  registration_ = std::move(counting);
  land(kCount, kSize, [this](const wire::DigestQuery& query) { answer(query); });
  EXPECT_TRUE(state_->wait(10s));
  EXPECT_EQ(registration.asked, 1);
}

TEST_F(VerifierTest, SaysThatThisSideRanOutOfMemory) {
  for (const std::size_t size : {std::size_t{100}, 2 * kDigestedAtOnce}) {  // here, and in the background
    here_ = pattern(size);
    registration_ = std::make_unique<Exhausting>(info_of(here_));
    land(1, size, [this](const wire::DigestQuery& query) { answer(query); });
    const Status ended = state_->wait(10s);
    ASSERT_FALSE(ended);
    EXPECT_EQ(ended.error().code, ErrorCode::kSystem);
    EXPECT_THAT(ended.error().message, HasSubstr("out of memory"));
  }
}

TEST(DigestAnswers, SayThatTheOwnerRanOutOfMemory) {
  Options options;
  options.listen_address = "127.0.0.1";
  options.transports = {"tcp"};
  const auto owner = Endpoint::create(options, builtin_transports()).value();
  auto bytes = pattern(2 * kDigestedAtOnce);
  const auto region = owner->context().regions->add(bytes.data(), bytes.size(), {}).value();
  const std::shared_ptr<Context> context(std::shared_ptr<void>(), &owner->context());
  std::atomic<bool> exhausted{true};
  std::promise<wire::DigestAnswer> said;
  const auto answers = std::make_shared<RegionAnswers>(
      context, std::make_shared<Router>(context->transports()), [&](const wire::Message& message) {
        if (exhausted.exchange(false)) throw std::bad_alloc();
        said.set_value(std::get<wire::DigestAnswer>(message));
      });
  const wire::DigestQuery query{.query = 3,
                                .regions = {{to_underlying(region->info().id), region->info().key}},
                                .runs = {{0, 1, bytes.size()}},
                                .addresses = {reinterpret_cast<std::uintptr_t>(bytes.data())}};
  ASSERT_TRUE(answers->on(query));
  auto future = said.get_future();
  const bool came = future.wait_for(10s) == std::future_status::ready;
  EXPECT_TRUE(came) << "nobody answers";
  if (came) {
    const wire::DigestAnswer answer = future.get();
    EXPECT_EQ(answer.query, 3U);
    EXPECT_EQ(answer.error, wire_code(ErrorCode::kSystem));
    EXPECT_THAT(answer.message.text(), HasSubstr("out of memory"));
  }
  EXPECT_TRUE(region->revoke(std::chrono::steady_clock::now() + 10s));
}

}  // namespace
}  // namespace p2p::engine
