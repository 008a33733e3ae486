// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "stream.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <random>
#include <thread>
#include <utility>

namespace softgpu {
namespace {

// Work begins up to so much later than it could: SOFTGPU_LATE_US, none.
std::chrono::microseconds late() {
  static const long most = [] {
    const char* const asked = std::getenv("SOFTGPU_LATE_US");
    return asked != nullptr ? std::atol(asked) : 0;
  }();
  if (most <= 0) return {};
  thread_local std::minstd_rand random(static_cast<unsigned>(::getpid() + ::gettid()));
  return std::chrono::microseconds(random() % static_cast<unsigned long>(most));
}

}  // namespace

struct Stream::State {
  mutable std::mutex mutex;
  mutable std::condition_variable changed;
  std::deque<Work> work;
  std::uint64_t added = 0;
  std::uint64_t finished = 0;
  bool failed = false;
  bool closed = false;

  void wait() const {
    std::unique_lock lock(mutex);
    const std::uint64_t number = added;
    changed.wait(lock, [&] { return finished >= number; });
  }

  /// Of all streams that have a thread.
  struct Everybody {
    std::mutex mutex;
    std::vector<std::weak_ptr<State>> states;
  };

  static Everybody& everybody() {
    static Everybody* const all = new Everybody;  // for threads that outlive main
    return *all;
  }
};

std::shared_ptr<Stream> Stream::open(int device) {
  const std::shared_ptr<Stream> stream(new Stream(device));
  stream->state_ = std::make_shared<State>();
  std::thread(run, stream->state_).detach();
  State::Everybody& all = State::everybody();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.states, [](const auto& one) { return one.expired(); });
  all.states.push_back(stream->state_);
  return stream;
}

Stream::~Stream() {
  const std::lock_guard lock(state_->mutex);
  state_->closed = true;
  state_->changed.notify_all();
}

void Stream::run(const std::shared_ptr<State>& state) {
  std::unique_lock lock(state->mutex);
  for (;;) {
    state->changed.wait(lock, [&] { return !state->work.empty() || state->closed; });
    if (state->work.empty()) return;
    const Work next = std::move(state->work.front());
    state->work.pop_front();
    const bool failed = state->failed;
    lock.unlock();
    if (const auto pause = late(); pause.count() != 0) std::this_thread::sleep_for(pause);
    const bool right = failed || next();
    lock.lock();
    state->failed |= !right;
    ++state->finished;
    state->changed.notify_all();
  }
}

std::uint64_t Stream::add(Work work) {
  const std::lock_guard lock(state_->mutex);
  state_->work.push_back(std::move(work));
  state_->changed.notify_all();
  return ++state_->added;
}

std::uint64_t Stream::last() const {
  const std::lock_guard lock(state_->mutex);
  return state_->added;
}

bool Stream::done(std::uint64_t number) const {
  const std::lock_guard lock(state_->mutex);
  return state_->finished >= number;
}

bool Stream::failed() const {
  const std::lock_guard lock(state_->mutex);
  return state_->failed;
}

void Stream::wait() const { state_->wait(); }

void Stream::wait_for_all() {
  std::vector<std::shared_ptr<State>> states;
  {
    State::Everybody& all = State::everybody();
    const std::lock_guard lock(all.mutex);
    for (const auto& one : all.states) {
      if (auto state = one.lock()) states.push_back(std::move(state));
    }
  }
  for (const auto& state : states) state->wait();
}

}  // namespace softgpu
