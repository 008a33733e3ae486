// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/slot.h"

#include <utility>

#include "base/error.h"
#include "base/lock_polling.h"
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

// The write path: a caller, or the thread, has a turn.

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
      source_->give_back(std::move(*piece), deferred);
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
  // A lost channel's pieces go over another one; the last channel's end fails them.
  const bool lost = completion.status.error().code == ErrorCode::kPeerGone;
  if (lost && piece->submission->doomed()) return piece->drop(deferred);  // cancelled, mostly: nothing failed
  if (lost && piece->may_go_again()) return source_->retry(std::move(*piece), deferred);
  piece->fail(std::move(completion.status.error()), deferred);
}

void Slot::drop(const Error& error, Deferred& deferred) {
  stopped_ = true;
  const auto self = shared_from_this();
  thread_.remove(*this, std::exchange(fd_, -1));
  if (auto* const leaver = dynamic_cast<LeavesPeer*>(channel_.get()); leaver != nullptr && fence_) {
    if (auto end = leaver->leave()) fence_->add(std::move(end));
  }
  channel_.reset();
  flying_.for_each([&](Piece& piece) {
    if (auto* const trace = piece.trace()) trace->piece_ended(way_, piece.batch.id, tl::unexpected(error));
    piece.fail(error, deferred);
  });
  flying_.clear();
  pace_.clear();
  source_->remove(*this, error, deferred);
  report(tl::unexpected(error), deferred);
}

void Slot::report(Status status, Deferred& deferred) {
  if (report_) deferred.call([report = report_, status = std::move(status)] { report(status); });
}

// Its life, and messages from others.

Bytes Slot::address() {
  MutexLock lock(mutex_);
  return channel_ ? channel_->address() : Bytes();
}

Status Slot::connect(ByteView peer_address) {
  MutexLock lock(mutex_);
  if (!channel_) return fail(ErrorCode::kPeerGone, "connect a channel: it was given up");
  return channel_->connect(peer_address);
}

void Slot::start() {
  thread_.post([self = shared_from_this()](Deferred& deferred) {
    self->assume_locked();
    if (!self->channel_) return;  // stopped before it came here
    const int fd = self->channel_->ready_fd();
    if (const Status added = self->thread_.add(self, fd); !added) return self->drop(added.error(), deferred);
    self->fd_ = fd;
    self->activate();
  });
}

void Slot::stop(const Error& error) {
  Deferred deferred;
  {
    MutexLock lock(mutex_);
    if (!stopped_) drop(error, deferred);
  }
  deferred.run();
}

bool Slot::give_up(const Error& error) {
  Deferred deferred;
  {
    MutexLock lock(mutex_);
    if (ready_ && !stopped_) return false;
    if (!stopped_) drop(error, deferred);
  }
  deferred.run();
  return true;
}

std::optional<Slot::Clock::time_point> Slot::quiet_since() {
  MutexLock lock(mutex_);
  const bool quiet = ready_ && !stopped_ && assists_ == 0 && !busy() && flying_.empty() && channel_->quiet();
  return quiet ? std::optional(moved_at_) : std::nullopt;
}

std::chrono::microseconds Slot::round_trip() {
  MutexLock lock(mutex_);
  return ready_ && !stopped_ ? channel_->round_trip() : std::chrono::microseconds(0);
}

void Slot::mute() {
  MutexLock lock(mutex_);
  report_ = nullptr;
}

void Slot::control(Bytes message) {
  thread_.post([self = shared_from_this(), message = std::move(message)](Deferred& deferred) {
    self->assume_locked();
    if (!self->channel_) return;
    if (const Status taken = self->channel_->on_control(message); !taken) {
      return self->drop(taken.error(), deferred);
    }
    self->activate();
  });
}

void Slot::abandon(std::shared_ptr<TransferState> state) {
  thread_.post([self = shared_from_this(), state = std::move(state)](Deferred& /*deferred*/) {
    self->assume_locked();
    if (!self->channel_) return;
    Channel& channel = *self->channel_;
    self->flying_.for_each([&](const Piece& piece) {
      if (piece.submission->state() == state) channel.abandon(piece.batch.id);
    });
    self->activate();
  });
}

// Who looks at it, and when.

// Something is under way that no descriptor announces.
bool Slot::busy() const {
  return more_ || channel_->busy() || (carries_words_ && words_->stuck()) || source_->awaits_gates(*this);
}

void Slot::signal() {
  if (!signalled_.exchange(true)) thread_.signal(shared_from_this());
}

// What the descriptor does not announce is the thread's to poll, which it does by itself while it watches.
void Slot::leave_to_thread() {
  const bool watching = active_ && policy_.left_to_callers();
  if (channel_ && busy() && !watching) signal();
}

bool Slot::begin_assist() {
  if (!mutex_.try_lock()) return false;
  if (assists_++ == 0) {
    disarmed_ = channel_ && !channel_->stir() && fd_ >= 0;
    if (disarmed_) thread_.arm(*this, fd_, false);
  }
  mutex_.unlock();
  return true;
}

void Slot::end_assist() {
  lock_polling(mutex_);
  if (--assists_ == 0) {
    if (std::exchange(disarmed_, false) && fd_ >= 0) thread_.arm(*this, fd_, true);
    const bool came = channel_ && !active_ && !channel_->rest();
    if (came || (channel_ && carries_words_ && words_->pending())) {
      signal();
    } else {
      leave_to_thread();
    }
  }
  mutex_.unlock();
}

bool Slot::left_to_caller(Clock::time_point now) const {
  // Who assists looks without a pause, unless the system has given his core to another.
  if (!policy_.left_to_callers())
    return now - called_at_.load() < (assists_ != 0 ? Policy::kAbsence : Policy::kReturn);
  return assists_ != 0 || now - (idle_ ? source_->called_at() : called_at_.load()) < policy_.callers_turn;
}

void Slot::take_signal() {
  assume_locked();
  signalled_.store(false);
  if (!channel_) return;
  called_at_ = Clock::time_point{};
  due_ = true;
  activate();
}

void Slot::activate() {
  assume_locked();
  moved_at_ = Clock::now();
  if (std::exchange(active_, true)) return;
  if (channel_) channel_->stir();
  thread_.look_at(shared_from_this());
}

bool Slot::turn_if_due(Clock::time_point now, Deferred& deferred) {
  assume_locked();
  if (!std::exchange(due_, false) && left_to_caller(now)) return false;
  if (!channel_ || !turn(deferred)) return false;
  moved_at_ = now;
  return true;
}

bool Slot::stays_active(Clock::time_point now) {
  assume_locked();
  active_ = channel_ && (now - moved_at_ < policy_.watch || busy() || (assists_ == 0 && !channel_->rest()));
  return active_;
}

}  // namespace p2p::engine
