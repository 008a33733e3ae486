// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "engine/request/stream_dependency_testing.h"
#include "engine/schedule/copy_channel_testing.h"
#include "engine/schedule/lane.h"
#include "engine/schedule/worker.h"

namespace p2p::engine {

using namespace std::chrono_literals;

class Finisher : public RequestOwner {
 public:
  void ended(const Request& request, Status status) override { request.state()->finish(std::move(status)); }
  void reroute(WorkItem item, const Error& why) override { fail_counted(reroutes, std::move(item), why); }
  void reroute_stuck(WorkItem item, const Error& why) override {
    fail_counted(was_rerouted, std::move(item), why);
  }
  void verify(WorkItem item) override {
    PostUnlockActions actions;
    item.close(actions);
    actions.run();
  }

  std::atomic<std::size_t> reroutes{0};
  std::atomic<std::size_t> was_rerouted{0};

 private:
  static void fail_counted(std::atomic<std::size_t>& count, WorkItem item, const Error& why) {
    ++count;
    PostUnlockActions actions;
    item.fail(why, actions);
    actions.run();
  }
};

class LaneTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (unsigned i = 0; i < 2; ++i) workers_.push_back(std::move(*Worker::start(50us, i)));
  }

  void TearDown() override {
    PostUnlockActions actions;
    lane_->close({ErrorCode::kCancelled, "the test ends"}, actions);
    actions.run();
    for (const auto& runner : runners_) runner->stop({ErrorCode::kCancelled, "the test ends"});
    workers_.clear();
    unattended_.clear();
  }

  std::shared_ptr<Script> add_channel(const std::string& rail = "", std::size_t fail_after = ~0UL) {
    auto script = std::make_shared<Script>();
    script->fail_after = fail_after;
    auto up = std::make_shared<TransferState>();
    ChannelRunner::Setup setup{.rail = rail,
                               .control = nullptr,
                               .channel = std::make_unique<CopyChannel>(script, "copy over " + rail),
                               .report = [up](const Status& status) { up->finish(status); }};
    Worker& worker = *workers_[runners_.size() % workers_.size()];
    runners_.push_back(std::make_shared<ChannelRunner>(worker, lane_, std::move(setup)));
    runners_.back()->start();
    EXPECT_TRUE(up->wait(10s));
    return script;
  }

  // One that only the test moves, and callers: its thread does not run.
  std::shared_ptr<Script> add_unattended_channel() {
    unattended_.push_back(*Worker::make(50us));
    auto script = std::make_shared<Script>();
    ChannelRunner::Setup setup{"", nullptr, std::make_unique<CopyChannel>(script, "copy"), nullptr};
    runners_.push_back(std::make_shared<ChannelRunner>(*unattended_.back(), lane_, std::move(setup)));
    PostUnlockActions actions;
    EXPECT_EQ(runners_.back()->try_turn(actions), Turn::kMoved);  // it comes up
    return script;
  }

  // Writes `count` blocks of `size` bytes from source_ to target_, in reverse order there.
  std::shared_ptr<TransferState> submit(std::size_t count, std::size_t size,
                                        std::shared_ptr<const StreamDependency> dependency = nullptr) {
    source_.resize(count * size);
    target_.assign(count * size, std::byte{0});
    for (std::size_t i = 0; i < source_.size(); ++i) source_[i] = static_cast<std::byte>(i * 31 + i / 251);
    auto list = std::make_shared<SegmentList>();
    list->operation = operation_;
    list->bytes = count * size;
    SegmentList::Portion portion{.segments = {}, .bytes = list->bytes};
    for (std::size_t i = 0; i < count; ++i) {
      append_merged(portion.segments,
                    {source_.data() + i * size,
                     reinterpret_cast<std::uintptr_t>(target_.data()) + (count - 1 - i) * size, size, nullptr,
                     nullptr});
    }
    list->portions.push_back(std::move(portion));
    list->locals = locals_;
    auto state = std::make_shared<TransferState>(list->bytes);
    auto request = std::make_shared<Request>(
        finisher_, Request::Post{list, state, std::move(dependency), {}, priority_, rate_});
    const SegmentList::Portion& all = list->portions.front();
    PostUnlockActions actions;
    started_ = lane_->submit({request, {.segments = all.segments, .bytes = all.bytes}}, actions);
    actions.run();
    return state;
  }

  // Waits as the caller who submitted it last does, who moves it on himself.
  void assist(TransferState& state) {
    lane_->let_waiter_assist(state, started_);
    state.poll(std::chrono::steady_clock::now() + 20s);
  }

  void expect_arrived(std::size_t count, std::size_t size) const {
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(std::memcmp(target_.data() + (count - 1 - i) * size, source_.data() + i * size, size), 0)
          << i;
    }
  }

  std::vector<std::unique_ptr<Worker>> workers_, unattended_;
  std::shared_ptr<Lane> lane_ = std::make_shared<Lane>(Policy::spread({4096, 8}, 50us));
  std::vector<std::shared_ptr<ChannelRunner>> runners_;
  std::shared_ptr<Finisher> finisher_ = std::make_shared<Finisher>();
  std::shared_ptr<ChannelRunner> started_;       // by the last submit
  std::vector<std::shared_ptr<Region>> locals_;  // of what is submitted
  Operation operation_ = Operation::kWrite;      // that it is said to be
  Priority priority_ = Priority::kNormal;        // of what is submitted
  std::uint64_t rate_ = 0;                       // likewise
  std::vector<std::byte> source_;
  std::vector<std::byte> target_;
};

}  // namespace p2p::engine
