// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/session/outbox.h"

namespace p2p::engine {
namespace {

/// Frames are sent off within a turn once they have so many bytes.
constexpr std::size_t kMuch = std::size_t{64} << 10;

}  // namespace

void Outbox::put(Bytes frame, bool passing) {
  MutexLock lock(mutex_);
  if (shut_) return;
  if (detached_) {
    if (!passing) log_.add(std::move(frame));
    return;
  }
  std::size_t sent = 0;
  const bool past = socket_ != nullptr;
  if (past) {
    sent = socket_->send_now(frame);
    if (sent != frame.size() || socket_->left_over()) socket_ = nullptr;
  }
  Bytes rest(frame.begin() + static_cast<std::ptrdiff_t>(sent), frame.end());
  if (!passing) log_.add(std::move(frame));
  if (past && socket_ != nullptr) return;
  bytes_ += rest.size();
  if (!rest.empty()) frames_.push_back({std::move(rest), turn_ == std::this_thread::get_id()});
  if (!turn_) wake();
}

void Outbox::close(Error reason) {
  MutexLock lock(mutex_);
  if (shut_) return;
  shut_ = true;
  socket_ = nullptr;
  close_ = std::move(reason);
  wake();
}

void Outbox::wake() {
  if (!std::exchange(woken_, true)) wake_();
}

Outbox::Taken Outbox::take(bool frames) {
  MutexLock lock(mutex_);
  woken_ = false;
  Taken taken{{}, close_};
  if (frames) {
    taken.frames.swap(frames_);
    bytes_ = 0;
  }
  return taken;
}

bool Outbox::closing() const {
  MutexLock lock(mutex_);
  return close_.has_value();
}

void Outbox::begin_turn() {
  MutexLock lock(mutex_);
  turn_ = std::this_thread::get_id();
}

void Outbox::end_turn() {
  MutexLock lock(mutex_);
  turn_.reset();
}

bool Outbox::has_much() const {
  MutexLock lock(mutex_);
  return bytes_ >= kMuch;
}

void Outbox::pass_to(ControlSocket& socket) {
  MutexLock lock(mutex_);
  if (!shut_ && frames_.empty() && !turn_) socket_ = &socket;
}

void Outbox::pass_no_more() {
  MutexLock lock(mutex_);
  socket_ = nullptr;
}

void Outbox::keep(std::size_t most) {
  MutexLock lock(mutex_);
  log_.keep(most);
}

Status Outbox::confirm(std::uint64_t handled) {
  MutexLock lock(mutex_);
  return log_.confirm(handled);
}

void Outbox::detach() {
  MutexLock lock(mutex_);
  detached_ = true;
  socket_ = nullptr;
  frames_.clear();
  bytes_ = 0;
}

bool Outbox::attach(std::uint64_t handled) {
  MutexLock lock(mutex_);
  auto again = log_.after(handled);
  if (!again || !log_.confirm(handled)) return false;
  detached_ = false;
  for (Bytes& frame : *again) {
    bytes_ += frame.size();
    frames_.push_back({std::move(frame), false});
  }
  return true;
}

std::optional<Error> Outbox::shut() {
  MutexLock lock(mutex_);
  shut_ = true;
  socket_ = nullptr;
  frames_.clear();
  bytes_ = 0;
  log_.keep(0);
  return close_;
}

}  // namespace p2p::engine
