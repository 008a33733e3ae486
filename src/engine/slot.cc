// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/slot.h"

#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/relax.h"
#include "base/underlying.h"

namespace p2p::engine {

Slot::Slot(SlotThread& thread, std::shared_ptr<WorkSource> source, Setup setup)
    : thread_(thread),
      mutex_(thread.mutex()),
      source_(std::move(source)),
      policy_(source_->policy()),
      rail_(std::move(setup.rail)),
      number_(setup.number),
      way_{this, setup.transport, rail_},
      fence_(std::move(setup.fence)),
      control_(std::move(setup.control)),
      words_(std::move(setup.words)),
      carries_words_(words_ && setup.channel->carries_words()),
      channel_(std::move(setup.channel)),
      report_(std::move(setup.report)) {
  thread_.reserve();
}

Turn Slot::try_turn(Deferred& deferred, Clock::time_point now) {
  if (!mutex_.try_lock()) return Turn::kBusy;
  bool moved = false;
  if (channel_) {
    moved = turn(deferred);
    called_at_ = now;
    if (moved) source_->note_call(moved_at_ = now);
    if (assists_ == 0) leave_to_thread();
  }
  mutex_.unlock();
  deferred.run();
  return moved ? Turn::kMoved : Turn::kIdle;
}

Turn Slot::await_turn(Deferred& deferred) {
  for (int looks = Policy::kLooks; looks != 1; --looks) {
    const Turn turn = try_turn(deferred);
    if (turn != Turn::kBusy) return turn;
    relax();
  }
  return try_turn(deferred);
}

bool Slot::turn(Deferred& deferred) {
  bool moved = progress(deferred);
  more_ = false;
  if (!ready_ && channel_->state() == ChannelState::kReady) {
    ready_ = true;
    description_ = channel_->describe();
    encrypted_ = channel_->encrypted();
    moved = true;
    source_->add(shared_from_this());
    report({}, deferred);
  }
  if (move_words(deferred)) moved = true;
  if (ready_ && channel_->state() == ChannelState::kReady && post_work(deferred)) {
    moved = true;
    if (channel_->busy()) {  // a copy is done when post returns
      if (progress(deferred) && full_) more_ = true;
      move_words(deferred);
    }
  }
  idle_.store(!busy(), std::memory_order_relaxed);
  if (channel_->state() == ChannelState::kFailed) {
    progress(deferred);  // what it gives back goes over others
    drop(channel_->error(), deferred);
    return true;
  }
  return moved;
}

bool Slot::move_words(Deferred& deferred) {
  return carries_words_ && words_->move(*this, *channel_, deferred);
}

bool Slot::post_work(Deferred& deferred) {
  bool moved = false;
  std::uint64_t posted = 0;  // bytes
  source_->look_at_gates(*this, deferred);
  while (true) {
    const auto id = flying_.next_id();
    full_ = !id;
    more_ = posted >= policy_.turn_bytes;
    if (full_ || more_) break;
    auto piece = source_->take(*this, deferred);
    if (!piece) break;
    piece->batch.id = *id;
    TransferTrace* const trace = piece->trace();
    const auto at = trace != nullptr ? Clock::now() : Clock::time_point{};
    if (!channel_->post(piece->batch)) {
      full_ = true;
      source_->give_back(*this, std::move(*piece), deferred);
      break;
    }
    if (trace != nullptr) trace->piece_sent(way_, piece->batch, at);
    posted += piece->batch.bytes;
    pace_.sent(piece->batch.bytes);
    flying_.add(std::move(*piece));
    moved = true;
  }
  return moved;
}

bool Slot::progress(Deferred& deferred) {
  const bool moved = channel_->progress(completions_);
  for (Completion& completion : completions_) complete(completion, deferred);
  completions_.clear();
  pace_.take();
  if (carries_words_) words_->tell(deferred);
  return moved;
}

void Slot::complete(Completion& completion, Deferred& deferred) {
  std::optional<Piece> piece = flying_.remove(completion.id);
  if (!piece) {
    log(LogLevel::kError, "{}: completed batch {} twice", channel_->describe(), to_underlying(completion.id));
    return;
  }
  // Before who waits for the piece sees its end and starts the next one.
  pace_.ended(piece->batch.bytes);
  if (auto* const trace = piece->trace()) trace->piece_ended(way_, completion.id, completion.status);
  if (completion.status) return piece->close(deferred);
  Error& error = completion.status.error();
  if (error.code != ErrorCode::kPeerGone) return piece->fail(std::move(error), deferred);
  // A lost channel's pieces go over another one, or over another transport.
  if (piece->submission->doomed()) return piece->drop(deferred);  // cancelled, mostly: nothing failed
  source_->retry(std::move(*piece), error, deferred);
}

void Slot::report(Status status, Deferred& deferred) {
  if (report_) deferred.call([report = report_, status = std::move(status)] { report(status); });
}

}  // namespace p2p::engine
