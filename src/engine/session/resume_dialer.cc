// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/session/resume_dialer.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace p2p::engine {

void ResumeDialer::add_place(std::string host, std::uint16_t port) {
  const auto is_it = [&](const Place& place) { return place.host == host && place.port == port; };
  if (std::ranges::none_of(places_, is_it)) places_.push_back({std::move(host), port});
}

void ResumeDialer::start(std::uint64_t handled, Clock::duration dark, ResumeAttempt::Done done) {
  const auto now = Clock::now();
  handled_ = handled;
  done_ = std::move(done);
  backoff_.reset();
  for (Place& place : places_) place.is_another = false;
  dials_all_ = dark.count() != 0;
  // Two beats at least: it was also dark to a side that stood still itself.
  const auto limit = std::max<Clock::duration>(settings_.keepalive - dark, 2 * beat_time());
  liveness_.emplace(LivenessMonitor::Limits{.beat = beat_time(),
                                            .machine = limit,
                                            .peer = settings_.terms.hung,
                                            .heard_elsewhere = settings_.heard_within},
                    now);
  beat_ = reactor_.after(beat_time(), [this] { beat(); });
  dial();
}

/// At first where it was; all at once from then on, and who answers first is asked.
void ResumeDialer::dial() {
  let_go();
  dialled_at_ = Clock::now();
  const std::size_t count = std::exchange(dials_all_, true) ? places_.size() : 1;
  dialers_.resize(count);
  for (std::size_t i = 0; i != count; ++i) {
    if (places_[i].is_another) continue;
    dialers_[i] = std::make_shared<Dialer>(reactor_, places_[i].host, places_[i].port);
    dialers_[i]->start([this, i](Result<UniqueFd> socket) { dialled(i, std::move(socket)); });
  }
}

void ResumeDialer::dialled(std::size_t place, Result<UniqueFd> socket) {
  dialers_[place] = nullptr;
  if (!socket) {
    const bool refused = socket.error().code == ErrorCode::kUnavailable;
    if (refused && place == 0) return finish(tl::unexpected(socket.error()));
    places_[place].is_another = refused;
    log(LogLevel::kDebug, "{}", socket.error().message);
    if (std::ranges::any_of(dialers_, [](const auto& one) { return one != nullptr; })) return;
    dialers_.clear();
    return dial_later();
  }
  let_go();
  dialled_ = place;
  attempt_ = std::make_shared<ResumeAttempt>(reactor_, settings_.terms, std::move(*socket));
  attempt_->start(++attempts_, handled_,
                  [this](Result<ResumeAttempt::Proven> outcome) { attempted(std::move(outcome)); });
}

void ResumeDialer::attempted(Result<ResumeAttempt::Proven> outcome) {
  attempt_ = nullptr;
  if (outcome) {
    std::swap(places_.front(), places_[dialled_]);
    return finish(std::move(outcome));
  }
  const bool unknown = outcome.error().code == ErrorCode::kNotFound;
  if (unknown && dialled_ == 0) return finish(std::move(outcome));
  places_[dialled_].is_another = unknown;
  log(LogLevel::kDebug, "go on with the session with {}: {}", places_[dialled_].host,
      outcome.error().message);
  dial_later();
}

void ResumeDialer::dial_later() {
  pause_ = reactor_.after(*backoff_.next(), [this] { dial(); });
}

/// Judges, and begins anew where the path is dark.
void ResumeDialer::beat() {
  const auto now = Clock::now();
  if (attempt_) {
    if (liveness_->is_path_dark(now, attempt_->unacknowledged())) dial();
  } else if (!dialers_.empty() && now - dialled_at_ >= beat_time() / 2) {
    dial();
  }
  const auto verdict = liveness_->judge(now);
  const bool is_gone = verdict.state == LivenessMonitor::State::kGone;
  if (is_gone && verdict.sign == LivenessMonitor::Sign::kMachine) {
    const std::string others =
        places_.size() == 1 ? "" : fmt::format(", or to {} other addresses of it,", places_.size() - 1);
    return finish(fail(ErrorCode::kPeerGone, "connect to {}:{}{} again: no answer within {} ms",
                       places_.front().host, places_.front().port, others, settings_.keepalive.count()));
  }
  if (is_gone) {
    return finish(fail(ErrorCode::kPeerGone, "its machine answers, it did not for {} ms",
                       settings_.terms.hung.count()));
  }
  beat_ = reactor_.after(beat_time(), [this] { beat(); });
}

void ResumeDialer::let_go() {
  reactor_.cancel(pause_);
  for (const auto& dialer : std::exchange(dialers_, {})) {
    if (dialer) dialer->stop();
  }
  if (attempt_) attempt_->stop();
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
