// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <deque>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "engine/request/stream_dependency_testing.h"
#include "engine/schedule/lane.h"
#include "engine/schedule/worker.h"

namespace p2p::engine {

using namespace std::chrono_literals;

// What the tests see of a channel that the worker owns.
struct Script {
  std::size_t window = 4;         // batches it takes
  std::size_t fail_after = ~0UL;  // posts until it is lost
  std::atomic<std::size_t> posts{0};
  std::atomic<bool> hold{false};   // completes nothing
  std::size_t looks = 1;           // at a batch until it completes
  std::atomic<bool> stuck{false};  // does not come back from a post
  std::atomic<std::size_t> abandoned{0};
  std::function<void()> on_post;       // called, and the batch refused, once
  std::atomic<bool> fail_late{false};  // lost after the next look that brings nothing
  std::atomic<std::chrono::milliseconds> stalled_for{};
  std::atomic<bool> heard{true};  // of the other host, at any time
};

// Copies from local to `remote` as an address of this process.
class CopyChannel : public Channel {
 public:
  CopyChannel(std::shared_ptr<Script> script, std::string name)
      : script_(std::move(script)), name_(std::move(name)) {}
  std::vector<std::byte> address() const override { return {}; }
  Status connect(std::span<const std::byte>) override { return {}; }
  ChannelState state() const override { return failed_ ? ChannelState::kFailed : ChannelState::kReady; }
  Error error() const override { return {ErrorCode::kPeerGone, "lost, as the test asked"}; }
  bool post(const Batch& batch) override {
    if (pending_.size() == script_->window) return false;
    if (const auto refuse = std::exchange(script_->on_post, nullptr)) return refuse(), false;
    if (script_->posts++ >= script_->fail_after) failed_ = true;
    script_->stuck.wait(true);
    if (!failed_) {
      batch.for_each_piece([](const Segment& item) {
        std::memcpy(reinterpret_cast<void*>(item.remote), item.local, item.size);
      });
    }
    pending_.push_back(batch.id);
    return true;
  }
  bool progress(std::vector<Completion>& completions) override {
    if (!failed_ && (pending_.empty() || script_->hold || ++looks_ < script_->looks)) {
      failed_ = script_->fail_late;
      return false;
    }
    if (pending_.empty()) return false;
    looks_ = 0;
    while (!pending_.empty()) {
      completions.push_back({pending_.front(), failed_ ? Status(tl::unexpected(error())) : Status()});
      pending_.pop_front();
    }
    return true;
  }
  void abandon(BatchId) override { ++script_->abandoned; }
  PathUse path_use() const override { return {.stalled_for = script_->stalled_for}; }
  bool heard_within(std::chrono::milliseconds) const override { return script_->heard; }
  void give_up(const Error&) override { failed_ = true; }
  int ready_fd() const override { return -1; }
  bool busy() const override { return !pending_.empty(); }
  std::string describe() const override { return name_; }

 private:
  std::shared_ptr<Script> script_;
  std::string name_;
  std::deque<BatchId> pending_;
  std::size_t looks_ = 0;
  bool failed_ = false;
};

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

  std::vector<std::unique_ptr<Worker>> workers_;
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
