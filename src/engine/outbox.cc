// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/outbox.h"

namespace p2p::engine {
namespace {

/// Frames are sent off within a turn once they have so many bytes.
constexpr std::size_t kMuch = std::size_t{64} << 10;

}  // namespace

void Outbox::put(Bytes frame) {
  MutexLock lock(mutex_);
  if (shut_) return;
  if (socket_ != nullptr) {
    const std::size_t sent = socket_->send_now(frame);
    if (sent == frame.size() && !socket_->left_over()) return;
    socket_ = nullptr;
    frame.erase(frame.begin(), frame.begin() + static_cast<std::ptrdiff_t>(sent));
  }
  bytes_ += frame.size();
  if (!frame.empty()) frames_.push_back({std::move(frame), turn_ == std::this_thread::get_id()});
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

std::optional<Error> Outbox::shut() {
  MutexLock lock(mutex_);
  shut_ = true;
  socket_ = nullptr;
  frames_.clear();
  bytes_ = 0;
  return close_;
}

}  // namespace p2p::engine
