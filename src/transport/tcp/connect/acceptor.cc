// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/connect/acceptor.h"

#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/rate_limited_log.h"
#include "drivers/socket/socket.h"

namespace p2p::tcp {
namespace {

constexpr std::size_t kMaxPending = 8;
constexpr std::chrono::seconds kPendingTime{2};
constexpr int kAcceptsPerCall = 16;
constexpr int kBacklog = 64;

// How long nothing is accepted when the system has no descriptor or no memory for it.
constexpr std::chrono::milliseconds kPause{100};

RateLimitedLog& shortages() {
  static RateLimitedLog log(LogLevel::kWarning);
  return log;
}

}  // namespace

Result<Acceptor> Acceptor::await(std::shared_ptr<StreamPort> port, const socket::Address& address,
                                 const Secret& secret, socket::PollSet& polls) {
  Acceptor acceptor(secret, polls);
  acceptor.address_.address = address;
  if (Status drawn = acceptor.draw_token(); !drawn) return tl::unexpected(drawn.error());
  acceptor.arrivals_ = std::make_unique<Arrivals>(std::move(port), acceptor.address_.token, polls);
  return acceptor;
}

Status Acceptor::draw_token() { return crypto::random_bytes(address_.token); }

Result<Acceptor> Acceptor::listen(const socket::Address& address, const Secret& secret,
                                  socket::PollSet& polls) {
  Acceptor acceptor(secret, polls);
  Result<UniqueFd> listener = socket::open_listener(address, kBacklog);
  if (!listener) return tl::unexpected(listener.error());
  const Result<socket::Address> bound = socket::local_address(listener->get());
  if (!bound) return tl::unexpected(bound.error());
  acceptor.address_.address = *bound;
  if (Status drawn = acceptor.draw_token(); !drawn) return tl::unexpected(drawn.error());
  if (Status status = polls.add(listener->get(), EPOLLIN); !status) return tl::unexpected(status.error());
  acceptor.listener_ = std::move(*listener);
  return acceptor;
}

Result<UniqueFd> Acceptor::advance() {
  if (Status status = take_waiting(); !status) return tl::unexpected(status.error());
  const Clock::time_point now = Clock::now();
  for (auto pending = pending_.begin(); pending != pending_.end();) {
    const Result<bool> proven = advance(*pending);
    if (proven && *proven) {
      UniqueFd fd = std::move(pending->fd);
      key_ = proof_of(secret_, pending->greeting, pending->nonce).key();
      polls_->remove(fd.get());
      pending_.clear();
      listener_.reset();
      arrivals_.reset();
      return fd;
    }
    // Whoever fails was a stranger or has died: the rightful peer may still come.
    pending = proven && now < pending->deadline ? pending + 1 : pending_.erase(pending);
  }
  return UniqueFd();
}

Status Acceptor::take_waiting() {
  if (arrivals_) {
    for (UniqueFd& fd : arrivals_->take()) take_in(std::move(fd));
    return {};
  }
  if (Clock::now() < paused_until_) return {};
  if (std::exchange(paused_until_, Clock::time_point::min()) != Clock::time_point::min()) {
    polls_->change(listener_.get(), EPOLLIN);
  }
  for (int i = 0; i != kAcceptsPerCall; ++i) {
    Result<UniqueFd> fd = socket::try_accept(listener_.get());
    if (!fd) {
      shortages().log("{}; a tcp channel's listener pauses for {} ms", fd.error().message, kPause.count());
      paused_until_ = Clock::now() + kPause;
      polls_->change(listener_.get(), 0);
      return {};
    }
    if (!*fd) return {};
    if (Status status = polls_->add(fd->get(), EPOLLIN); !status) return status;
    take_in(std::move(*fd));
  }
  return {};
}

void Acceptor::take_in(UniqueFd fd) {
  if (pending_.size() == kMaxPending && !make_room()) return;
  pending_.push_back({.fd = std::move(fd),
                      .deadline = Clock::now() + kPendingTime,
                      .message = MessageReader(Greeting::kBytes)});
}

// The eldest that does not know the token goes. Who does is the peer, or has overheard it after it came: the
// peer, which has begun to prove itself, stays.
bool Acceptor::make_room() {
  const auto stranger = std::find_if(pending_.begin(), pending_.end(),
                                     [](const Pending& pending) { return !pending.knows_token; });
  if (stranger == pending_.end()) return false;
  pending_.erase(stranger);
  return true;
}

// True once the peer is proven; an error drops it.
Result<bool> Acceptor::advance(Pending& pending) {
  while (true) {
    const Result<bool> complete = pending.message.receive(pending.fd.get());
    if (!complete || !*complete) return complete;
    if (pending.knows_token) {
      const crypto::MutualProof proof = proof_of(secret_, pending.greeting, pending.nonce);
      if (proof.holds(Role::kConnector, pending.message.view())) return true;
      return fail(ErrorCode::kPermissionDenied, "a stranger does not know the secret");
    }
    if (Status status = answer(pending); !status) return tl::unexpected(status.error());
  }
}

Status Acceptor::answer(Pending& pending) {
  const Result<Greeting> greeting = Greeting::decode(pending.message.view());
  if (!greeting || !crypto::equal(greeting->token, address_.token)) {
    return fail(ErrorCode::kPermissionDenied, "a stranger does not know the token");
  }
  pending.greeting = *greeting;
  if (Status status = crypto::random_bytes(pending.nonce); !status) return status;
  pending.knows_token = true;
  pending.message = MessageReader(sizeof(crypto::Digest));
  const Answer answer{.nonce = pending.nonce,
                      .proof = proof_of(secret_, *greeting, pending.nonce).by(Role::kAcceptor)};
  return send_message(pending.fd.get(), answer.encode());
}

Clock::time_point Acceptor::next_deadline() const {
  const bool paused = paused_until_ != Clock::time_point::min();
  Clock::time_point next = paused ? paused_until_ : Clock::time_point::max();
  for (const Pending& pending : pending_) next = std::min(next, pending.deadline);
  return next;
}

}  // namespace p2p::tcp
