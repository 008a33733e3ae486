// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/session/resume_acceptor.h"

#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace p2p::engine {

void ResumeAcceptor::open() {
  open_ = true;
  port_->expect(terms_.token, [this, weak = weak_from_this()](UniqueFd socket) {
    // Tasks are copyable; a descriptor is not.
    reactor_.post([weak, held = std::make_shared<UniqueFd>(std::move(socket))] {
      if (const auto self = weak.lock()) self->hear(std::move(*held));
    });
  });
}

void ResumeAcceptor::close() {
  if (!std::exchange(open_, false)) return;
  port_->forget(terms_.token);
  while (!guests_.empty()) send_off(guests_.begin()->first);
}

void ResumeAcceptor::hear(UniqueFd socket) {
  if (!open_) return;
  if (Status let_in = admit(ResumeAttempt::peek(terms_, socket.get())); !let_in) {
    return log(LogLevel::kDebug, "an attempt to go on with a session is refused: {}", let_in.error().message);
  }
  const std::uint64_t id = next_++;
  auto attempt = std::make_shared<ResumeAttempt>(reactor_, terms_, std::move(socket));
  const auto limit = reactor_.after(kTimeOfOne, [this, id] { send_off(id); });
  guests_.emplace(id, Guest{attempt, limit});
  attempt->start(0, 0, [this, id](Result<ResumeAttempt::Proven> outcome) { heard(id, std::move(outcome)); });
}

/// The place of a new guest, if it may have one.
Status ResumeAcceptor::admit(const Result<std::uint32_t>& attempt) {
  if (!attempt) return tl::unexpected(attempt.error());
  if (*attempt < newest_ || *attempt <= last_attempt_) {
    return fail(ErrorCode::kPermissionDenied, "attempt {} came after attempt {}", *attempt, newest_);
  }
  if (*attempt > newest_) {
    while (!guests_.empty()) send_off(guests_.begin()->first);
  }
  newest_ = *attempt;
  if (guests_.size() < kMostAttempts) return {};
  return fail(ErrorCode::kPermissionDenied, "attempt {} is heard {} times already", *attempt, kMostAttempts);
}

void ResumeAcceptor::heard(std::uint64_t guest, Result<ResumeAttempt::Proven> outcome) {
  send_off(guest);
  if (outcome && outcome->attempt <= last_attempt_) {
    outcome = fail(ErrorCode::kPermissionDenied, "attempt {} came after attempt {}", outcome->attempt,
                   last_attempt_);
  }
  if (!outcome) {
    log(LogLevel::kDebug, "an attempt to go on with a session failed: {}", outcome.error().message);
    return;
  }
  last_attempt_ = outcome->attempt;
  take_(std::move(*outcome));
}

void ResumeAcceptor::send_off(std::uint64_t guest) {
  const auto found = guests_.find(guest);
  if (found == guests_.end()) return;
  reactor_.cancel(found->second.limit);
  found->second.attempt->stop();
  guests_.erase(found);
}

}  // namespace p2p::engine
