// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/loop/reactor.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <time.h>

#include <atomic>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.h"

namespace p2p::engine {
namespace {

using namespace std::chrono_literals;

constexpr auto kPatience = 20s;

class ReactorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto started = Reactor::start();
    ASSERT_TRUE(started) << started.error().message;
    reactor_ = std::move(*started);
  }

  /// Runs `task` on the reactor and waits for it.
  void run(std::function<void()> task) {
    std::promise<void> ran;
    reactor_->post([&] {
      task();
      ran.set_value();
    });
    ASSERT_EQ(ran.get_future().wait_for(kPatience), std::future_status::ready);
  }

  std::unique_ptr<Reactor> reactor_;
};

UniqueFd ready_event() { return UniqueFd(eventfd(1, EFD_NONBLOCK | EFD_CLOEXEC)); }

TEST_F(ReactorTest, RunsPostsInOrderFromEveryThread) {
  constexpr int kThreads = 4;
  constexpr int kPosts = 2000;
  std::vector<int> next(kThreads, 0);
  bool ordered = true;
  std::thread::id own;
  run([&] { own = std::this_thread::get_id(); });
  bool on_own = true;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kPosts; ++i) {
        reactor_->post([&, t, i] {
          ordered = ordered && next[static_cast<std::size_t>(t)]++ == i;
          on_own = on_own && std::this_thread::get_id() == own;
        });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  run([] {});
  EXPECT_TRUE(ordered);
  EXPECT_TRUE(on_own);
  EXPECT_NE(own, std::this_thread::get_id());
  EXPECT_EQ(next, std::vector<int>(kThreads, kPosts));
}

TEST_F(ReactorTest, RunsWhatWasPostedBeforeTheEnd) {
  std::atomic<int> ran = 0;
  for (int i = 0; i < 100; ++i) reactor_->post([&] { ++ran; });
  reactor_.reset();
  EXPECT_EQ(ran, 100);
}

TEST_F(ReactorTest, DropsWhatHandlersHold) {
  const auto held = std::make_shared<int>(1);
  const UniqueFd event(eventfd(0, EFD_NONBLOCK));
  run([&] {
    ASSERT_TRUE(reactor_->watch(event.get(), EPOLLIN, [held](std::uint32_t) {}));
    reactor_->after(1h, [held] {});
  });
  EXPECT_EQ(held.use_count(), 3);
  reactor_.reset();
  EXPECT_EQ(held.use_count(), 1);
}

// A timer is due by when it was asked for: a round tells nothing in which a busy machine let that take long.
TEST_F(ReactorTest, RunsTimersWhenDueAndInOrder) {
  bool quick = false;
  for (int round = 0; round != 100 && !quick; ++round) {
    std::promise<std::vector<int>> done;
    const auto order = std::make_shared<std::vector<int>>();  // for a timer that comes last, too
    const auto start = Reactor::Clock::now();
    run([&] {
      const auto begun = Reactor::Clock::now();
      reactor_->after(30ms, [&done, order] {
        order->push_back(3);
        done.set_value(*order);
      });
      reactor_->after(10ms, [order] { order->push_back(1); });
      reactor_->after(20ms, [order] { order->push_back(2); });
      const auto cancelled = reactor_->after(5ms, [order] { order->push_back(0); });
      quick = Reactor::Clock::now() - begun < 10ms;
      reactor_->cancel(cancelled);
      reactor_->cancel(cancelled);
      reactor_->cancel(Reactor::TimerId{});
    });
    auto ran = done.get_future();
    ASSERT_EQ(ran.wait_for(kPatience), std::future_status::ready);
    EXPECT_GE(Reactor::Clock::now() - start, 30ms);
    if (quick) {
      EXPECT_EQ(ran.get(), std::vector({1, 2, 3}));
    }
  }
  EXPECT_TRUE(quick);
}

// A thread that stood still, as in a stopped process, takes no deadline for missed that was met meanwhile.
TEST_F(ReactorTest, WhatHasComeGoesBeforeTimersThatAreDue) {
  std::promise<void> done;
  std::vector<std::string> order;
  const UniqueFd event(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  run([&] {
    ASSERT_TRUE(reactor_->watch(event.get(), EPOLLIN, [&](std::uint32_t) {
      reactor_->unwatch(event.get());
      order.emplace_back("event");
    }));
    reactor_->after(1ms, [&] {
      order.emplace_back("timer");
      done.set_value();
    });
    eventfd_write(event.get(), 1);
    reactor_->post([&] { order.emplace_back("post"); });
    const auto stands_still_until = Reactor::Clock::now() + 2ms;
    while (Reactor::Clock::now() < stands_still_until) {
    }
  });
  ASSERT_EQ(done.get_future().wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(order, std::vector<std::string>({"event", "post", "timer"}));
}

TEST_F(ReactorTest, TimersMayCancelAndStartTimers) {
  std::promise<void> done;
  bool wrong = false;
  run([&] {
    // Asked for first, so that it is due first on a busy machine, too.
    const auto later = std::make_shared<Reactor::TimerId>();
    reactor_->after(1ms, [&, later] {
      reactor_->cancel(*later);
      reactor_->after(5ms, [&] { done.set_value(); });
    });
    *later = reactor_->after(2ms, [&] { wrong = true; });
  });
  ASSERT_EQ(done.get_future().wait_for(kPatience), std::future_status::ready);
  EXPECT_FALSE(wrong);
}

TEST_F(ReactorTest, HandlersMayUnwatchThemselvesAndOthers) {
  UniqueFd first = ready_event();
  UniqueFd second = ready_event();
  int calls = 0;
  std::promise<void> done;
  run([&] {
    // Both are ready in one round; whichever comes first ends both, and a new descriptor takes a number.
    const auto handler = [&](std::uint32_t) {
      ++calls;
      reactor_->unwatch(first.get());
      reactor_->unwatch(second.get());
      first.reset();
      second.reset();
      first = UniqueFd(eventfd(0, EFD_NONBLOCK));
      ASSERT_TRUE(reactor_->watch(first.get(), EPOLLIN, [&](std::uint32_t) { calls += 100; }));
      reactor_->after(5ms, [&] { done.set_value(); });
    };
    ASSERT_TRUE(reactor_->watch(first.get(), EPOLLIN, handler));
    ASSERT_TRUE(reactor_->watch(second.get(), EPOLLIN, handler));
  });
  ASSERT_EQ(done.get_future().wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(calls, 1);
  run([&] { reactor_->unwatch(first.get()); });
}

TEST_F(ReactorTest, ChangesTheEventsOfADescriptor) {
  const UniqueFd event = ready_event();
  std::promise<std::uint32_t> got;
  run([&] {
    ASSERT_TRUE(reactor_->watch(event.get(), 0, [&](std::uint32_t events) {
      reactor_->unwatch(event.get());
      got.set_value(events);
    }));
    reactor_->after(2ms, [&] { reactor_->change(event.get(), EPOLLOUT); });
  });
  auto events = got.get_future();
  ASSERT_EQ(events.wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(events.get(), static_cast<std::uint32_t>(EPOLLOUT));
}

TEST_F(ReactorTest, RefusesToWatchWhatCannotBeWatched) {
  run([&] {
    const Status watched = reactor_->watch(-1, EPOLLIN, [](std::uint32_t) {});
    ASSERT_FALSE(watched);
    EXPECT_EQ(watched.error().code, ErrorCode::kSystem);
    reactor_->unwatch(-1);
  });
}

TEST_F(ReactorTest, TakesNoProcessorTimeWhenIdle) {
  const UniqueFd event(eventfd(0, EFD_NONBLOCK));
  clockid_t clock{};
  timespec before{};
  run([&] {
    ASSERT_TRUE(reactor_->watch(event.get(), EPOLLIN, [](std::uint32_t) {}));
    reactor_->after(1h, [] {});
    ASSERT_EQ(pthread_getcpuclockid(pthread_self(), &clock), 0);
  });
  clock_gettime(clock, &before);
  // Nothing happens while this promise is not kept.
  EXPECT_EQ(std::promise<void>().get_future().wait_for(200ms), std::future_status::timeout);
  timespec after{};
  clock_gettime(clock, &after);
  const auto used = std::chrono::seconds(after.tv_sec - before.tv_sec) +
                    std::chrono::nanoseconds(after.tv_nsec - before.tv_nsec);
  EXPECT_LT(used, 5ms);
}

}  // namespace
}  // namespace p2p::engine
