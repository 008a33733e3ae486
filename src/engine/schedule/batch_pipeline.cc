// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/schedule/batch_pipeline.h"

#include <new>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "base/memory_guard.h"
#include "base/underlying.h"
#include "engine/schedule/lane.h"

namespace p2p::engine {
namespace {

/// As the channel's. Out of memory, it fails the item, which nobody else has.
bool post_item(Channel& channel, WorkItem& item, PostUnlockActions& actions) {
  try {
    return channel.post(item.batch);
  } catch (const std::bad_alloc&) {
    item.fail({ErrorCode::kSystem, std::string(kOutOfMemory)}, actions);
    throw;
  }
}

}  // namespace

BatchPipeline::BatchPipeline(const ChannelRunner& runner, Lane& lane, TransferTrace::Way way,
                             RateEstimator& pace)
    : runner_(runner), lane_(lane), policy_(lane.policy()), pace_(pace), flying_(way, pace) {}

// Whoever takes a lane's channels away to close them looks at each, under its mutex, for what is under way:
// what comes after that look finds that the lane serves no more.
std::optional<WorkItem> BatchPipeline::next_item(PostUnlockActions& actions, WorkItem* first) {
  if (first != nullptr && first->request && lane_.serves()) return std::exchange(*first, {});
  return lane_.pull(runner_, actions);
}

bool BatchPipeline::post(Channel& channel, WorkItem* first, PostUnlockActions& actions) {
  bool moved = false;
  std::uint64_t posted = 0;  // bytes
  lane_.admit_ready(runner_, actions);
  while (true) {
    const auto id = flying_.next_id();
    full_ = !id;
    more_ = posted >= policy_.turn_bytes;
    if (full_ || more_) break;
    auto item = next_item(actions, first);
    if (!item) break;
    item->batch.id = *id;
    const auto at =
        item->trace() != nullptr ? InflightTable::Clock::now() : InflightTable::Clock::time_point{};
    if (!post_item(channel, *item, actions)) {
      full_ = true;
      lane_.give_back(runner_, std::move(*item), actions);
      break;
    }
    posted += item->batch.bytes;
    flying_.add(std::move(*item), at);
    moved = true;
  }
  return moved;
}

bool BatchPipeline::progress(Channel& channel, PostUnlockActions& actions) {
  const bool moved = channel.progress(completions_);
  for (Completion& completion : completions_) complete(completion, channel, actions);
  completions_.clear();
  pace_.update();
  return moved;
}

void BatchPipeline::note_room() {
  if (full_ || lane_.queued() != 0) more_ = true;
}

void BatchPipeline::complete(Completion& completion, const Channel& channel, PostUnlockActions& actions) {
  std::optional<WorkItem> item = flying_.complete(completion);
  if (!item) {
    return log(LogLevel::kError, "{}: completed batch {} twice", channel.describe(),
               to_underlying(completion.id));
  }
  if (completion.status) return item->land(actions);
  Error& error = completion.status.error();
  if (error.code != ErrorCode::kPeerGone) return item->fail(std::move(error), actions);
  // A lost channel's items go over another one, or over another transport.
  if (item->request->aborted()) return item->drop(actions);  // cancelled, mostly: nothing failed
  lane_.retry(std::move(*item), error, actions);
}

void BatchPipeline::abandon(const std::shared_ptr<TransferState>& state, Channel& channel) {
  flying_.for_each([&](const WorkItem& item) {
    if (item.request->state() == state) channel.abandon(item.batch.id);
  });
}

}  // namespace p2p::engine
