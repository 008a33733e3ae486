// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/session/session_resume.h"

#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "drivers/crypto/crypto.h"
#include "drivers/socket/address.h"

namespace p2p::engine {

void SessionResume::begin() {
  if (dials() || !settings_.port) return;
  if (Status drawn = crypto::random_bytes(token_); !drawn) {
    return log(LogLevel::kWarning, "a session ends with its connection: {}", drawn.error().message);
  }
  acceptor_ = std::make_shared<ResumeAcceptor>(
      reactor_, settings_.port, terms(),
      [this](ResumeAttempt::Proven proven) { hooks_.resumed(std::move(proven)); });
  acceptor_->open();
  hooks_.say(own());
}

wire::Resumable SessionResume::own() const {
  wire::Resumable own{.token = token_};
  if (const auto& process = settings_.process) {
    own.boot = process->boot;
    own.pid_namespace = process->pid_namespace;
    own.pid = process->pid;
    own.started = process->started;
  }
  return own;
}

Status SessionResume::take(const wire::Resumable& said) {
  const bool asked = dials() ? true : acceptor_ && said.token == token_;
  if (peer_ || !asked) return fail(ErrorCode::kProtocol, "a Resumable was not due");
  peer_ = said;
  if (!dials()) return {};
  token_ = said.token;
  dialer_.emplace(reactor_, ResumeDialer::Settings{terms(), settings_.host, settings_.host_port,
                                                   settings_.keepalive, hooks_.heard_within});
  hooks_.say(own());
  return {};
}

Status SessionResume::take(const wire::AlternateAddresses& said) {
  if (!dialer_ || std::exchange(has_others_, true)) {
    return fail(ErrorCode::kProtocol, "other addresses were not due");
  }
  if (said.addresses.size() > wire::kMostOtherAddresses) {
    return fail(ErrorCode::kProtocol, "{} other addresses, of at most {}", said.addresses.size(),
                wire::kMostOtherAddresses);
  }
  for (const auto& [text, port] : said.addresses) {
    const auto address = socket::Address::parse(text, port);
    if (!address || port == 0 || address->is_wildcard()) {
      return fail(ErrorCode::kProtocol, "another address that is none");
    }
    // What it calls so is on its own host or link, and something else here.
    if (address->is_loopback() || address->is_link_local()) continue;
    dialer_->add_place(address->text(), port);
  }
  return {};
}

void SessionResume::count(std::size_t bytes) {
  ++handled_;
  untold_bytes_ += bytes;
  if (untold_bytes_ >= kConfirmAfter) confirm();
}

bool SessionResume::confirm() {
  if (!possible() || told_ == handled_) return false;
  told_ = handled_;
  untold_bytes_ = 0;
  hooks_.say(wire::CumulativeAck{handled_});
  return true;
}

void SessionResume::suspend(Clock::duration dark) {
  suspended_ = true;
  if (settings_.process) {
    const ProcessId theirs{peer_->boot, peer_->pid_namespace, peer_->pid, peer_->started};
    process_.start(*settings_.process, theirs,
                   [this] { give_up({ErrorCode::kPeerGone, "its process has ended"}); });
  }
  if (dials()) {
    return dialer_->start(handled_, dark, [this](Result<ResumeAttempt::Proven> outcome) {
      if (!outcome) return give_up(outcome.error());
      hooks_.resumed(std::move(*outcome));
    });
  }
  liveness_.emplace(
      LivenessMonitor::Limits{.beat = settings_.keepalive / LivenessMonitor::kBeats,
                              .machine = settings_.keepalive,
                              .heard_elsewhere = [this](auto time) { return is_heard_of(time); }},
      Clock::now());
  wait_for_peer();
}

/// A process that is seen to live, though it may be stopped, is on a machine that does.
bool SessionResume::is_heard_of(std::chrono::milliseconds within) const {
  return (process_.sees_it_live() && !peer_leaves_) || (hooks_.heard_within && hooks_.heard_within(within));
}

/// In beats, so that time in which this process was stopped counts for little. A peer whose machine is heard
/// of elsewhere may have a bad path alone; its owner bounds that.
void SessionResume::wait_for_peer() {
  if (liveness_->judge(Clock::now()).state == LivenessMonitor::State::kGone) {
    return give_up({ErrorCode::kPeerGone,
                    fmt::format("it did not connect again within {} ms", settings_.keepalive.count())});
  }
  beat_ = reactor_.after(liveness_->beat(), [this] { wait_for_peer(); });
}

void SessionResume::give_up(const Error& why) {
  if (suspended_) hooks_.gave_up(why);
}

void SessionResume::settle() {
  suspended_ = false;
  told_ = handled_;
  untold_bytes_ = 0;
  reactor_.cancel(beat_);
  process_.stop();
}

void SessionResume::stop() {
  settle();
  peer_.reset();
  if (dialer_) dialer_->stop();
  if (acceptor_) acceptor_->close();
}

}  // namespace p2p::engine
