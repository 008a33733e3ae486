// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/request/transfer.h"

#include "base/callback.h"
#include "base/error.h"
#include "base/futex.h"

namespace p2p::engine {

Status TransferState::wait(std::chrono::nanoseconds timeout) {
  const auto deadline = deadline_after(timeout);
  poll(deadline);
  while (!done()) {
    if (std::chrono::steady_clock::now() >= deadline) {
      return fail(ErrorCode::kTimedOut, "wait for a transfer of {} bytes: not done after {} ms", bytes(),
                  std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count());
    }
    std::uint32_t expected = kRunning;
    if (message_.compare_exchange_strong(expected, kWaited) || expected == kWaited) {
      futex_wait(message_, kWaited, deadline);
    }
  }
  return status_;
}

Status TransferState::status() const {
  if (!done()) return {};
  return status_;
}

// Either this thread sees that it is done, or the one that ends it sees that there are callbacks, or both do.
void TransferState::on_done(std::function<void()> callback) {
  {
    MutexLock lock(mutex_);
    callbacks_.push_back(std::move(callback));
  }
  called_back_.store(true);
  if (message_.load() == kDone) run_callbacks();
}

void TransferState::run_callbacks() {
  std::vector<std::function<void()>> callbacks;
  {
    MutexLock lock(mutex_);
    callbacks.swap(callbacks_);
  }
  for (const auto& callback : callbacks) run_callback(callback);
}

void TransferState::cancel() {
  if (cancelled_.exchange(true)) return;
  if (cancel_ && !done()) cancel_();
}

void TransferState::set_cancel(std::function<void()> cancel) {
  if (done()) return;
  if (cancelled()) return cancel();
  cancel_ = std::move(cancel);
}

void TransferState::finish(Status status) {
  if (finishing_.exchange(true)) return;
  status_ = std::move(status);
  if (message_.exchange(kDone) == kWaited) futex_wake_all(message_);
  if (called_back_.load()) run_callbacks();
}

std::shared_ptr<TransferState> failed_transfer(Error error) {
  auto state = std::make_shared<TransferState>();
  state->finish(tl::unexpected(std::move(error)));
  return state;
}

}  // namespace p2p::engine
