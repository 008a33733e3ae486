// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
// A runner's life, and messages to its channel from others.
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/schedule/channel_runner.h"

namespace p2p::engine {
namespace {

/// Fails items whose memory the peer's channel may have been using, and says so if it still may: then their
/// regions stay behind the fence.
Fence::Release fail_behind(const std::shared_ptr<Fence>& fence, std::vector<WorkItem> items,
                           const Error& why) {
  // Tasks are copyable; items are moved.
  auto held = std::make_shared<std::vector<WorkItem>>(std::move(items));
  return [fence = std::weak_ptr(fence), held, why](bool through) {
    PostUnlockActions actions;
    for (WorkItem& item : *held) {
      Error error = why;
      if (!through) {
        const SegmentList& list = item.request->list();
        error.message += list.operation == Operation::kWrite ? kMayStillRead : kMayStillWrite;
        if (const auto still = fence.lock()) {
          for (const auto& region : list.locals) region->stay_behind(still);
        }
      }
      item.fail(std::move(error), actions);
    }
    actions.run();
  };
}

}  // namespace

Bytes ChannelRunner::address() {
  MutexLock lock(mutex_);
  return channel_ ? channel_->address() : Bytes();
}

Status ChannelRunner::connect(ByteView peer_address) {
  MutexLock lock(mutex_);
  if (!channel_) return fail(ErrorCode::kPeerGone, "connect a channel: it was given up");
  return channel_->connect(peer_address);
}

void ChannelRunner::start() {
  thread_.post([self = shared_from_this()](PostUnlockActions& actions) {
    self->assume_locked();
    if (!self->channel_) return;  // stopped before it came here
    const int fd = self->channel_->ready_fd();
    if (const Status added = self->thread_.add(self, fd); !added) return self->drop(added.error(), actions);
    self->fd_ = fd;
    self->activate();
  });
}

void ChannelRunner::stop(const Error& error) {
  PostUnlockActions actions;
  {
    MutexLock lock(mutex_);
    if (!stopped_) drop(error, actions);
  }
  actions.run();
}

bool ChannelRunner::give_up(const Error& error) {
  PostUnlockActions actions;
  {
    MutexLock lock(mutex_);
    if (ready_ && !stopped_) return false;
    if (!stopped_) drop(error, actions);
  }
  actions.run();
  return true;
}

void ChannelRunner::drop(const Error& error, PostUnlockActions& actions) {
  stopped_ = true;
  const auto self = shared_from_this();
  thread_.remove(*this, std::exchange(fd_, -1));
  LeavesPeer::Left left;
  if (auto* const leaver = dynamic_cast<LeavesPeer*>(channel_.get()); leaver != nullptr && fence_) {
    left = leaver->leave();
  }
  channel_.reset();
  flying_.for_each([&](const WorkItem& item) {
    if (auto* const trace = item.trace()) trace->item_ended(way_, item.batch.id, tl::unexpected(error));
  });
  if (left.end) {
    std::vector<WorkItem> held;
    for (const BatchId id : left.held) {
      if (auto item = flying_.remove(id)) held.push_back(std::move(*item));
    }
    auto release = held.empty() ? nullptr : fail_behind(fence_, std::move(held), error);
    fence_->add(std::move(left.end), std::move(release));
  }
  flying_.for_each([&](WorkItem& item) { item.fail(error, actions); });
  flying_.clear();
  pace_.clear();
  source_->remove(*this);
  report(tl::unexpected(error), actions);
}

std::optional<ChannelRunner::Clock::time_point> ChannelRunner::quiet_since() {
  MutexLock lock(mutex_);
  const bool quiet = ready_ && !stopped_ && assists_ == 0 && !busy() && flying_.empty() && channel_->quiet();
  return quiet ? std::optional(moved_at_) : std::nullopt;
}

std::chrono::microseconds ChannelRunner::round_trip() {
  MutexLock lock(mutex_);
  return ready_ && !stopped_ ? channel_->round_trip() : std::chrono::microseconds(0);
}

bool ChannelRunner::heard_within(std::chrono::milliseconds time) {
  MutexLock lock(mutex_);
  return ready_ && !stopped_ && channel_->heard_within(time);
}

void ChannelRunner::mute() {
  MutexLock lock(mutex_);
  report_ = nullptr;
}

void ChannelRunner::control(Bytes message) {
  thread_.post([self = shared_from_this(), message = std::move(message)](PostUnlockActions& actions) {
    self->assume_locked();
    if (!self->channel_) return;
    if (const Status taken = self->channel_->on_control(message); !taken) {
      return self->drop(taken.error(), actions);
    }
    self->activate();
  });
}

void ChannelRunner::abandon(std::shared_ptr<TransferState> state) {
  thread_.post([self = shared_from_this(), state = std::move(state)](PostUnlockActions& /*actions*/) {
    self->assume_locked();
    if (!self->channel_) return;
    Channel& channel = *self->channel_;
    self->flying_.for_each([&](const WorkItem& item) {
      if (item.request->state() == state) channel.abandon(item.batch.id);
    });
    self->activate();
  });
}

}  // namespace p2p::engine
