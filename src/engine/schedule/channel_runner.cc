// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/channel_runner.h"

#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/relax.h"
#include "base/underlying.h"

namespace p2p::engine {

ChannelRunner::ChannelRunner(Executor& thread, std::shared_ptr<WorkQueue> source, Setup setup)
    : thread_(thread),
      mutex_(thread.mutex()),
      source_(std::move(source)),
      policy_(source_->policy()),
      rail_(std::move(setup.rail)),
      number_(setup.number),
      way_{this, setup.transport, rail_},
      fence_(std::move(setup.fence)),
      control_(std::move(setup.control)),
      messages_(std::move(setup.messages)),
      carries_messages_(messages_ && setup.channel->carries_messages()),
      channel_(std::move(setup.channel)),
      report_(std::move(setup.report)) {
  thread_.reserve();
}

Turn ChannelRunner::try_turn(PostUnlockActions& actions, Clock::time_point now, WorkItem* first) {
  if (!mutex_.try_lock()) return Turn::kBusy;
  bool moved = false;
  if (channel_) {
    moved = turn(actions, first);
    called_at_ = now;
    if (moved) source_->note_call(moved_at_ = now);
    if (assists_ == 0) leave_to_thread();
  }
  mutex_.unlock();
  actions.run();
  return moved ? Turn::kMoved : Turn::kIdle;
}

Turn ChannelRunner::await_turn(PostUnlockActions& actions) {
  for (int looks = Policy::kLooks; looks != 1; --looks) {
    const Turn turn = try_turn(actions);
    if (turn != Turn::kBusy) return turn;
    relax();
  }
  return try_turn(actions);
}

bool ChannelRunner::turn(PostUnlockActions& actions, WorkItem* first) {
  bool moved = progress(actions);
  more_ = false;
  if (!ready_ && channel_->state() == ChannelState::kReady) {
    ready_ = true;
    description_ = channel_->describe();
    encrypted_ = channel_->encrypted();
    moved = true;
    source_->add(shared_from_this());
    report({}, actions);
  }
  if (move_messages(actions)) moved = true;
  if (ready_ && channel_->state() == ChannelState::kReady && post_work(actions, first)) {
    moved = true;
    if (channel_->busy()) {  // a copy is done when post returns
      if (progress(actions) && full_) more_ = true;
      move_messages(actions);
    }
  }
  idle_.store(!busy(), std::memory_order_relaxed);
  if (channel_->state() == ChannelState::kFailed) {
    progress(actions);  // what it gives back goes over others
    drop(channel_->error(), actions);
    return true;
  }
  return moved;
}

bool ChannelRunner::move_messages(PostUnlockActions& actions) {
  return carries_messages_ && messages_->move(*this, *channel_, actions);
}

// Whoever takes a lane's channels away to close them looks at each, under its mutex, for what is under way:
// what comes after that look finds that the lane serves no more.
std::optional<WorkItem> ChannelRunner::next_item(PostUnlockActions& actions, WorkItem* first) {
  if (first != nullptr && first->request && source_->serves()) return std::exchange(*first, {});
  return source_->take(*this, actions);
}

bool ChannelRunner::post_work(PostUnlockActions& actions, WorkItem* first) {
  bool moved = false;
  std::uint64_t posted = 0;  // bytes
  source_->look_at_gates(*this, actions);
  while (true) {
    const auto id = flying_.next_id();
    full_ = !id;
    more_ = posted >= policy_.turn_bytes;
    if (full_ || more_) break;
    auto item = next_item(actions, first);
    if (!item) break;
    item->batch.id = *id;
    TransferTrace* const trace = item->trace();
    const auto at = trace != nullptr ? Clock::now() : Clock::time_point{};
    if (!channel_->post(item->batch)) {
      full_ = true;
      source_->give_back(*this, std::move(*item), actions);
      break;
    }
    if (trace != nullptr) trace->item_sent(way_, item->batch, at);
    posted += item->batch.bytes;
    pace_.sent(item->batch.bytes);
    flying_.add(std::move(*item));
    moved = true;
  }
  return moved;
}

bool ChannelRunner::progress(PostUnlockActions& actions) {
  const bool moved = channel_->progress(completions_);
  for (Completion& completion : completions_) complete(completion, actions);
  completions_.clear();
  pace_.take();
  if (carries_messages_) messages_->tell(actions);
  return moved;
}

void ChannelRunner::complete(Completion& completion, PostUnlockActions& actions) {
  std::optional<WorkItem> item = flying_.remove(completion.id);
  if (!item) {
    log(LogLevel::kError, "{}: completed batch {} twice", channel_->describe(), to_underlying(completion.id));
    return;
  }
  // Before who waits for the item sees its end and starts the next one.
  pace_.ended(item->batch.bytes);
  if (auto* const trace = item->trace()) trace->item_ended(way_, completion.id, completion.status);
  if (completion.status) return item->close(actions);
  Error& error = completion.status.error();
  if (error.code != ErrorCode::kPeerGone) return item->fail(std::move(error), actions);
  // A lost channel's items go over another one, or over another transport.
  if (item->request->aborted()) return item->drop(actions);  // cancelled, mostly: nothing failed
  source_->retry(std::move(*item), error, actions);
}

void ChannelRunner::report(Status status, PostUnlockActions& actions) {
  if (report_) actions.call([report = report_, status = std::move(status)] { report(status); });
}

}  // namespace p2p::engine
