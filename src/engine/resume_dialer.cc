// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/resume_dialer.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace p2p::engine {

void ResumeDialer::start(std::uint64_t handled, Clock::duration dark, ResumeAttempt::Done done) {
  const auto now = Clock::now();
  handled_ = handled;
  done_ = std::move(done);
  limit_ = settings_.keepalive - std::min<Clock::duration>(dark, settings_.keepalive);
  next_pause_ = kFirstPause;
  darkness_.emplace(now, 2 * beat_time());
  silence_.emplace(now, 2 * beat_time());
  beat_ = reactor_.after(beat_time(), [this] { beat(); });
  dial();
}

void ResumeDialer::dial() {
  let_go();
  dialled_at_ = Clock::now();
  dialer_ = std::make_shared<Dialer>(reactor_, settings_.host, settings_.port);
  dialer_->start([this](Result<UniqueFd> socket) { dialled(std::move(socket)); });
}

void ResumeDialer::dialled(Result<UniqueFd> socket) {
  dialer_ = nullptr;
  if (!socket && socket.error().code == ErrorCode::kUnavailable) {
    return finish(tl::unexpected(socket.error()));
  }
  if (!socket) {
    log(LogLevel::kDebug, "{}", socket.error().message);
    return dial_later();
  }
  attempt_ = std::make_shared<ResumeAttempt>(reactor_, settings_.terms, std::move(*socket));
  attempt_->start(++attempts_, handled_,
                  [this](Result<ResumeAttempt::Proven> outcome) { attempted(std::move(outcome)); });
}

void ResumeDialer::attempted(Result<ResumeAttempt::Proven> outcome) {
  attempt_ = nullptr;
  if (outcome || outcome.error().code == ErrorCode::kNotFound) return finish(std::move(outcome));
  log(LogLevel::kDebug, "go on with the session with {}: {}", settings_.host, outcome.error().message);
  dial_later();
}

void ResumeDialer::dial_later() {
  pause_ = reactor_.after(next_pause_, [this] { dial(); });
  next_pause_ = std::min(kLongestPause, 2 * next_pause_);
}

/// Judges, and begins anew where the path is dark: a packet that was lost goes again at ever longer
/// intervals.
void ResumeDialer::beat() {
  using std::chrono::duration_cast, std::chrono::milliseconds;
  const auto now = Clock::now();
  if (attempt_) {
    const auto answers = attempt_->unacknowledged();
    if (!answers.awaited || answers.last < 2 * beat_time()) {
      darkness_->moved(now);
    } else {
      dial();
    }
  } else if (dialer_ && now - dialled_at_ >= beat_time() / 2) {
    dial();
  }
  if (darkness_->tick(now) >= limit_) {
    return finish(fail(ErrorCode::kPeerGone, "connect to {}:{} again: no answer within {} ms", settings_.host,
                       settings_.port, settings_.keepalive.count()));
  }
  if (silence_->tick(now) >= settings_.terms.hung) {
    return finish(fail(ErrorCode::kPeerGone, "its machine answers, it did not for {} ms",
                       settings_.terms.hung.count()));
  }
  beat_ = reactor_.after(beat_time(), [this] { beat(); });
}

void ResumeDialer::let_go() {
  reactor_.cancel(pause_);
  if (dialer_) dialer_->stop();
  if (attempt_) attempt_->stop();
  dialer_ = nullptr;
  attempt_ = nullptr;
}

void ResumeDialer::finish(Result<ResumeAttempt::Proven> outcome) {
  const ResumeAttempt::Done done = std::exchange(done_, nullptr);
  stop();
  if (done) done(std::move(outcome));
}

void ResumeDialer::stop() {
  done_ = nullptr;
  reactor_.cancel(beat_);
  let_go();
}

}  // namespace p2p::engine
