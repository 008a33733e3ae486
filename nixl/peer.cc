// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "peer.h"

#include <algorithm>
#include <utility>

#include "failure.h"
#include "p2p/write_log.h"

namespace p2p::nixl {
namespace {

// For how long after a loss it is left open whether the peer lives: far longer than a live one takes to
// answer.
constexpr std::chrono::milliseconds kDoubt{500};

// Callers start transfers with what `link` gave: they must not be kept waiting by a close.
constexpr std::chrono::nanoseconds kAtOnce{0};

constexpr const char* kAnother = "another process, or another life of it, answers at its address";

}  // namespace

/// Holds the mutex of a peer whose state is up to date. What was discarded meanwhile is closed after the
/// mutex is free, since closing may call back.
class Peer::Turn {
 public:
  explicit Turn(Peer& peer) : peer_(peer), lock_(peer.mutex_) { peer_.take_changes(); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn() {
    const auto discarded = std::exchange(peer_.discarded_, std::nullopt);
    lock_.unlock();
    if (discarded) (void)discarded->close(kAtOnce);
  }

 private:
  Peer& peer_;
  std::unique_lock<std::mutex> lock_;
};

Result<Peer::Link> Peer::link() {
  const Turn turn(*this);
  dial_if_due();
  const bool usable =
      state_ == State::kConnecting || state_ == State::kOpen || (state_ == State::kLost && fresh_loss());
  if (!usable) return gone();
  return Link{connection_, number_};
}

Status Peer::notify(std::string_view message) {
  const Turn turn(*this);
  dial_if_due();
  if (state_ == State::kConnecting) {
    waiting_.emplace_back(message);
    return {};
  }
  if (state_ != State::kOpen) return gone();
  const Transfer sent = connection_.notify(message);
  if (sent.done() && !sent.status()) return sent.status();
  return {};
}

void Peer::suspect(std::uint32_t number) {
  const Turn turn(*this);
  if (state_ != State::kOpen || number != number_) return;
  discarded_ = connection_;
  closed({ErrorCode::kPeerGone, "a transfer found it gone"});
}

bool Peer::in_doubt() {
  const Turn turn(*this);
  return state_ == State::kLost && fresh_loss();
}

bool Peer::hopeless(std::uint32_t number) {
  const Turn turn(*this);
  return state_ == State::kLost && number == number_ && !fresh_loss();
}

void Peer::settle(std::chrono::nanoseconds timeout) {
  Connection connection;
  {
    const Turn turn(*this);
    if (state_ != State::kConnecting || waiting_.empty()) return;
    connection = connection_;
  }
  (void)connection.wait_open(timeout);
  const Turn turn(*this);
}

void Peer::leave() {
  const Turn turn(*this);
  if (connection_.valid()) discarded_ = std::exchange(connection_, Connection());
  waiting_.clear();
  state_ = State::kLeft;
}

void Peer::take_changes() {
  if (state_ != State::kConnecting && state_ != State::kOpen && state_ != State::kLost) return;
  const ConnectionState now = connection_.state();
  if (now == ConnectionState::kConnecting) return;
  if (now == ConnectionState::kOpen) {
    if (state_ != State::kOpen) opened();
    return;
  }
  const Status status = connection_.status();
  closed(status ? Error{ErrorCode::kPeerGone, "the connection was closed"} : status.error());
}

void Peer::dial(State as) {
  state_ = as;
  again_ = as == State::kLost;
  ++number_;
  const auto patience = std::min(timing_.connect, again_ ? timing_.keepalive : 2 * timing_.keepalive);
  connection_ = endpoint_.connect_async(info_.address, info_.port, patience);
  if (!connection_.valid()) return give_up(State::kEnded, "this agent is closing");
  connection_.on_change([weak = weak_from_this()] {
    if (const auto self = weak.lock()) const Turn turn(*self);
  });
}

void Peer::opened() {
  if (connection_.peer().incarnation != info_.incarnation) {
    discarded_ = connection_;
    return give_up(State::kEnded, kAnother);
  }
  state_ = State::kOpen;
  said_goodbye_ = false;
  opened_at_ = Clock::now();
  write_log(LogLevel::kInfo,
            "NIXL agent " + agent_ + ": connected, " + info_.address + " port " + std::to_string(info_.port));
  for (const std::string& message : std::exchange(waiting_, {})) (void)connection_.notify(message);
}

void Peer::dial_again() {
  lost_at_ = Clock::now();
  dial(State::kLost);
}

/// For new work on a peer that nobody dials.
void Peer::dial_if_due() {
  if (state_ == State::kIdle) dial(State::kConnecting);
  if (state_ == State::kAway) dial_again();
}

void Peer::closed(const Error& error) {
  if (state_ == State::kOpen) said_goodbye_ = connection_.closed_by_peer();
  const Incarnation met = connection_.peer().incarnation;  // 0: nobody has said who he is
  if (state_ != State::kOpen && met != 0 && met != info_.incarnation) {
    return give_up(State::kEnded, kAnother);
  }
  // A host that refuses the port runs nobody who listens there. Who was met lives, though no channel came up.
  if (state_ != State::kOpen && met == 0 && error.code == ErrorCode::kUnavailable) {
    return give_up(State::kEnded, error.message);
  }
  const bool flapping = again_ && Clock::now() - opened_at_ < timing_.keepalive;
  if (state_ != State::kOpen || flapping) return give_up(State::kAway, error.message);
  write_log(LogLevel::kInfo, "NIXL agent " + agent_ + ": connection lost, dialling again: " + error.message);
  dial_again();
}

void Peer::give_up(State as, const std::string& why) {
  state_ = as;
  why_ = why;
  std::string line =
      "NIXL agent " + agent_ + (as == State::kEnded ? " is gone: " : " does not answer: ") + why;
  if (!waiting_.empty()) line += "; " + std::to_string(waiting_.size()) + " notifications to it are lost";
  // Whoever ends in order has told so.
  write_log(said_goodbye_ && waiting_.empty() ? LogLevel::kInfo : LogLevel::kWarning, line);
  waiting_.clear();
}

bool Peer::fresh_loss() const { return Clock::now() - lost_at_ < std::min(kDoubt, timing_.keepalive / 2); }

tl::unexpected<Error> Peer::gone() const {
  return failure(ErrorCode::kPeerGone,
                 "agent " + agent_ + " is gone: " + (why_.empty() ? "the connection was lost" : why_));
}

}  // namespace p2p::nixl
