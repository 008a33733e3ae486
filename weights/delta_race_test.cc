// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// Versions, publishers and stages that end while several threads make deltas, and chunks of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <new>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "jobs.h"
#include "p2p/weights/publisher.h"
#include "p2p/weights/subscriber.h"
#include "support/byte_tensor.h"

namespace p2p::weights {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kRaceChunk = 128 << 10;
constexpr int kRaceSeeds = 4;

using Memory = std::vector<std::byte>;

/// A publisher of version 1, and of 2 as deltas of that; a subscriber that has committed 1.
struct Scene {
  Scene(std::uint64_t seed, std::chrono::milliseconds stall) : dice(seed), first(64 * kRaceChunk + 1000) {
    for (std::size_t at = 0; at < first.size(); at += 1 + dice() % 8)
      first[at] = static_cast<std::byte>(dice());
    second = first;
    for (std::size_t at = 0; at < second.size(); at += 1 + dice() % 100) second[at] ^= std::byte{1};
    expected = second;
    Options options = Options::from_environment().value();
    options.listen_address = "127.0.0.1";
    options.transports = {"tcp"};  // each side reads its own memory alone, so that a thread sanitizer follows
    publisher.emplace(std::move(Publisher::create(options).value()));
    EXPECT_TRUE(publisher->publish(1, byte_tensor(first)));
    SubscriberOptions subscribes;
    subscribes.endpoint = options;
    subscribes.publishers = {"127.0.0.1:" + std::to_string(publisher->port())};
    subscribes.chunk_bytes = kRaceChunk;
    subscribes.stall = stall;
    subscriber.emplace(std::move(Subscriber::create(subscribes).value()));
    base.resize(first.size());
    into.resize(first.size());
    EXPECT_TRUE(subscriber->stage(1, byte_tensor(base), StageOptions{.timeout = 60s}));
    EXPECT_TRUE(subscriber->commit());
  }

  /// Stages version 2; once a random part of it is here, mostly a small one, something happens. False ends
  /// the stage.
  Status stage_while(const std::function<bool()>& happens) {
    EXPECT_TRUE(publisher->publish(2, byte_tensor(second), 1));
    StageOptions options{.timeout = 60s};
    options.progress = [&, moment = dice() % into.size() >> dice() % 8,
                        over = false](const Progress& now) mutable {
      progress = now;
      return now.bytes < moment || std::exchange(over, true) || happens();
    };
    Status status = subscriber->stage(2, byte_tensor(into), options);
    EXPECT_TRUE(!status || into == expected);
    EXPECT_EQ(progress.wrong_digests, 0);  // no delta is of memory that has changed
    return status;
  }

  static void spoil(Memory& memory) { std::ranges::fill(memory, std::byte{0x5a}); }

  std::mt19937_64 dice;
  Memory first, second, expected;  // at the publisher
  Memory base, into;               // at the subscriber
  Progress progress;
  std::optional<Publisher> publisher;
  std::optional<Subscriber> subscriber;
};

/// By seed, by one thread and by several. After `stall` without anybody to take from a stage ends.
void each_scene(std::chrono::milliseconds stall, const std::function<void(Scene&)>& then) {
  const std::size_t usual = most_jobs;
  for (const std::size_t jobs : {1, 4}) {
    for (int seed = 1; seed <= kRaceSeeds; ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", jobs " + std::to_string(jobs));
      most_jobs = jobs;
      Scene scene(static_cast<std::uint64_t>(seed), stall);
      then(scene);
    }
  }
  most_jobs = usual;
}

TEST(DeltaRace, WhereNothingHappensAllComesAsDeltas) {
  each_scene(60s, [](Scene& scene) {
    EXPECT_TRUE(scene.stage_while([] { return true; }));
    EXPECT_EQ(scene.progress.from_deltas, scene.into.size()) << scene.progress.no_delta;
  });
}

TEST(DeltaRace, ABaseThatIsWithdrawnIsReadNoMore) {
  each_scene(60s, [](Scene& scene) {
    EXPECT_TRUE(scene.stage_while([&] {
      EXPECT_TRUE(scene.publisher->withdraw(1));
      Scene::spoil(scene.first);
      return true;
    }));
  });
}

TEST(DeltaRace, AVersionThatIsWithdrawnIsReadNoMore) {
  each_scene(300ms, [](Scene& scene) {
    (void)scene.stage_while([&] {
      EXPECT_TRUE(scene.publisher->withdraw(2));
      Scene::spoil(scene.second);
      EXPECT_TRUE(scene.publisher->withdraw(1));
      Scene::spoil(scene.first);
      return true;
    });
  });
}

TEST(DeltaRace, APublisherThatEndsReadsNothingMore) {
  each_scene(300ms, [](Scene& scene) {
    (void)scene.stage_while([&] {
      scene.publisher.reset();
      Scene::spoil(scene.first);
      Scene::spoil(scene.second);
      return true;
    });
  });
}

TEST(DeltaRace, ABaseThatIsDroppedIsReadNoMore) {
  each_scene(60s, [](Scene& scene) {
    EXPECT_TRUE(scene.stage_while([&] {
      EXPECT_TRUE(scene.subscriber->drop(1));
      Scene::spoil(scene.base);
      return true;
    }));
  });
}

TEST(DeltaRace, AStageThatIsEndedWritesNoMore) {
  each_scene(60s, [](Scene& scene) {
    EXPECT_FALSE(scene.stage_while([] { return false; }));
    Scene::spoil(scene.into);
    const Memory spoilt = scene.into;
    scene.subscriber.reset();
    EXPECT_TRUE(scene.into == spoilt);
  });
}

TEST(Jobs, AreAsManyAtOnceAsThereMayBe) {
  const std::size_t usual = most_jobs.exchange(2);
  const auto wake = std::make_shared<Wake>();
  Jobs jobs(wake);
  std::promise<void> go;
  const auto work = [gone = go.get_future().share()](Room& /*room*/) -> Result<std::thread::id> {
    EXPECT_EQ(gone.wait_for(60s), std::future_status::ready);
    return std::this_thread::get_id();
  };
  auto one = jobs.start(work), two = jobs.start(work);
  ASSERT_TRUE(one.valid() && two.valid());
  EXPECT_FALSE(jobs.start(work).valid());
  EXPECT_FALSE(one.done());
  go.set_value();
  EXPECT_NE(*one.take(), *two.take());
  EXPECT_TRUE(wake->wait(60s));
  EXPECT_FALSE(jobs.start(work).valid());
  one = {};
  EXPECT_TRUE(jobs.start(work).valid());
  most_jobs = usual;
}

TEST(Jobs, OfOneThreadAreDoneAtOnce) {
  const std::size_t usual = most_jobs.exchange(1);
  Jobs jobs(std::make_shared<Wake>());
  auto job = jobs.start([](Room& /*room*/) -> Result<std::thread::id> { return std::this_thread::get_id(); });
  ASSERT_TRUE(job.done());
  EXPECT_EQ(*job.take(), std::this_thread::get_id());
  most_jobs = usual;
}

TEST(Jobs, WithoutMemoryEndWithAnError) {
  Jobs jobs(std::make_shared<Wake>());
  auto job = jobs.start([](Room& /*room*/) -> Result<int> { throw std::bad_alloc(); });
  const auto result = job.take();
  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().message, ::testing::HasSubstr("out of memory"));
}

}  // namespace
}  // namespace p2p::weights
