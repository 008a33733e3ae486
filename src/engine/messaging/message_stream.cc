// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/messaging/message_stream.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/memory_guard.h"
#include "engine/schedule/channel_runner.h"
#include "engine/schedule/lane.h"
#include "wire/decode.h"
#include "wire/fields.h"

namespace p2p::engine {
namespace {

constexpr std::size_t kHeadBytes = 8 + 8 + 1;
constexpr std::size_t kBlockBytes = kMaxMessageBlockBytes - kHeadBytes;
static_assert(MessageStream::kMaxFrameBytes <= kBlockBytes);

// So much is acknowledged without being asked, which bounds what the peer keeps.
constexpr std::uint64_t kAnswerBytes = std::uint64_t{64} << 10;

// So much leaves at once, whatever else is on its way.
constexpr std::uint64_t kGatherBytes = std::uint64_t{8} << 10;

}  // namespace

Status MessageStream::say(const wire::Message& message, std::span<const ByteView> tail) {
  MutexLock lock(out_mutex_);
  const std::uint64_t begin = log_.end();
  Status said = log_.append(message, tail);
  if (taker_ == std::this_thread::get_id()) answers_ += log_.end() - begin;
  note_pending();
  return said;
}

void MessageStream::gather() {
  MutexLock lock(out_mutex_);
  many_end_ = log_.end();
}

void MessageStream::flush() {
  // Within another flush of this thread what that one set off is on the stack already.
  thread_local bool flushing = false;
  std::shared_ptr<ChannelRunner> runner;
  {
    MutexLock lock(out_mutex_);
    if (!due()) return;
    runner = path_;
  }
  if (!runner) return flush_to_session();
  if (flushing) return runner->signal();
  flushing = true;
  PostUnlockActions actions;
  const Turn turn = runner->assisted() ? runner->try_turn(actions) : runner->await_turn(actions);
  flushing = false;
  // A caller who drives the channel looks before he leaves.
  if (turn == Turn::kBusy && !runner->assisted()) runner->signal();
}

void MessageStream::flush_if_due() {
  {
    MutexLock lock(out_mutex_);
    const bool awaiting = log_.begin() < asked_;
    if (awaiting && many_end_ == log_.end() && log_.end() - sent_ < kGatherBytes) return;
  }
  flush();
}

void MessageStream::flush_to_session() {
  MutexLock order(session_mutex_);
  wire::MessageBlock messages;
  while (true) {
    {
      MutexLock lock(out_mutex_);
      if (path_ || !build(messages.block)) return;
    }
    hooks_.send(messages);
  }
}

void MessageStream::travel_by(std::shared_ptr<ChannelRunner> runner) {
  {
    MutexLock lock(out_mutex_);
    if (open_ && path_ == runner) return;
    open_ = true;
    path_ = std::move(runner);
    sent_ = log_.begin();
    asked_ = 0;
    note_pending();
  }
  flush();
}

std::shared_ptr<ChannelRunner> MessageStream::path() const {
  MutexLock lock(out_mutex_);
  return path_;
}

bool MessageStream::due() const { return open_ && (sent_ != log_.end() || answer_due_); }

void MessageStream::note_pending() {
  const bool now = due();
  if (pending_.load(std::memory_order_relaxed) != now) pending_.store(now);
}

bool MessageStream::next_block(const ChannelRunner& runner, Bytes& block) {
  if (!pending()) return false;
  MutexLock lock(out_mutex_);
  return path_.get() == &runner && build(block);
}

bool MessageStream::build(Bytes& block) {
  if (!due()) return false;
  const ByteView frames = sent_ == log_.end() ? ByteView() : log_.from(sent_, kBlockBytes);
  const bool asks = sent_ < many_end_;
  block.clear();
  ByteWriter writer(block);
  writer.put(sent_);
  writer.put(heard_);
  writer.put(static_cast<std::uint8_t>(asks ? 1 : 0));
  block.insert(block.end(), frames.begin(), frames.end());
  sent_ += frames.size();
  sent_most_ = std::max(sent_most_, sent_);
  if (asks) asked_ = sent_;
  told_ = heard_;
  answer_due_ = false;
  note_pending();
  return true;
}

void MessageStream::take(ByteView block, PostUnlockActions& actions) {
  Status taken;
  guard_memory(
      "a message of a peer", [&] { taken = take_block(block, actions); },
      [&] { taken = fail(ErrorCode::kSystem, "take a message: {}", kOutOfMemory); });
  if (!taken) {
    actions.call(
        [self = shared_from_this(), error = std::move(taken).error()] { self->hooks_.broken(error); });
  }
}

Status MessageStream::take_block(ByteView block, PostUnlockActions& actions) {
  ByteReader in(block);
  const auto offset = in.get<std::uint64_t>();
  const auto acknowledged = in.get<std::uint64_t>();
  const auto asks = in.get<std::uint8_t>();
  if (!in.ok() || asks > 1) {
    return fail(ErrorCode::kProtocol, "words of {} bytes are no block", block.size());
  }
  if (Status known = this->acknowledged(acknowledged); !known) return known;
  MutexLock lock(in_mutex_);
  taker_ = std::this_thread::get_id();
  const Status taken = take_frames(offset, in.take(in.left()), actions);
  taker_ = std::thread::id();
  if (!taken) return taken;
  MutexLock out(out_mutex_);
  heard_ = expected_;
  answer_due_ = answer_due_ || asks != 0 || heard_ - told_ >= kAnswerBytes;
  note_pending();
  if (older_answers_ + answers_ <= kMaxAnswerBytes) return {};
  return fail(ErrorCode::kProtocol, "{} bytes of answers wait for the peer, which takes none of them",
              older_answers_ + answers_);
}

Status MessageStream::acknowledged(std::uint64_t offset) {
  MutexLock lock(out_mutex_);
  if (offset > sent_most_) {
    return fail(ErrorCode::kProtocol, "words up to {} are acknowledged, {} were sent", offset, sent_most_);
  }
  if (offset <= log_.begin()) return {};  // came later than a newer one
  if (!log_.drop(offset)) return fail(ErrorCode::kProtocol, "half a word is acknowledged, up to {}", offset);
  sent_ = std::max(sent_, offset);
  note_pending();
  if (offset < answers_mark_) return {};
  answers_mark_ = log_.end();
  older_answers_ = std::exchange(answers_, 0);
  return {};
}

// What came by another path already is left out.
Status MessageStream::take_frames(std::uint64_t offset, ByteView frames, PostUnlockActions& actions) {
  if (offset > expected_) {
    return fail(ErrorCode::kProtocol, "words from {} on, {} was due", offset, expected_);
  }
  if (expected_ - offset >= frames.size()) return {};
  frames = frames.subspan(expected_ - offset);
  while (!frames.empty()) {
    const auto length = ByteReader(frames).get<std::uint32_t>();
    const std::size_t left = frames.size() - std::min(frames.size(), wire::kLengthBytes);
    if (length < wire::kTypeBytes || length > left || length > kMaxFrameBytes - wire::kLengthBytes) {
      return fail(ErrorCode::kProtocol, "a word of {} bytes in {}", length, frames.size());
    }
    Status taken = wire::decode(frames.subspan(wire::kLengthBytes, length), message_);
    if (taken) taken = hooks_.handle(message_, actions);
    if (!taken) return taken;
    expected_ += wire::kLengthBytes + length;
    frames = frames.subspan(wire::kLengthBytes + length);
  }
  return {};
}

void MessageStream::assist(const std::function<bool()>& through,
                           std::chrono::steady_clock::time_point deadline, bool all) {
  const auto runner = path();
  if (runner && assists()) runner->lane()->assist(through, deadline, runner, all);
}

void MessageStream::close() {
  std::shared_ptr<ChannelRunner> path;  // let go of without the lock
  MutexLock lock(out_mutex_);
  open_ = false;
  note_pending();
  path_.swap(path);
}

}  // namespace p2p::engine
