// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transport/transport.h"

namespace p2p::engine {

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
  std::atomic<bool> heard{true};     // of the other host, at any time
  std::atomic<bool> answers{false};  // is heard from then on, if probed
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
  void probe() override {
    if (script_->answers) script_->heard = true;
  }
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

}  // namespace p2p::engine
