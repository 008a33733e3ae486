// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/acceptor.h"

#include <sys/epoll.h>

#include <algorithm>

#include "base/error.h"
#include "drivers/socket/socket.h"

namespace p2p::tcp {
namespace {

constexpr std::size_t kMaxPending = 8;
constexpr std::chrono::seconds kPendingTime{2};
constexpr int kAcceptsPerCall = 16;
constexpr int kBacklog = 64;

}  // namespace

Result<Acceptor> Acceptor::listen(const socket::Address& address, const Secret& secret,
                                  socket::PollSet& polls) {
  Acceptor acceptor(secret, polls);
  Result<UniqueFd> listener = socket::open_listener(address, kBacklog);
  if (!listener) return tl::unexpected(listener.error());
  const Result<socket::Address> bound = socket::local_address(listener->get());
  if (!bound) return tl::unexpected(bound.error());
  acceptor.address_.address = *bound;
  if (Status status = crypto::random_bytes(acceptor.address_.token); !status) {
    return tl::unexpected(status.error());
  }
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
      polls_->remove(fd.get());
      pending_.clear();
      listener_.reset();
      return fd;
    }
    // Whoever fails was a stranger or has died: the rightful peer may still come.
    pending = proven && now < pending->deadline ? pending + 1 : pending_.erase(pending);
  }
  return UniqueFd();
}

Status Acceptor::take_waiting() {
  for (int i = 0; i != kAcceptsPerCall; ++i) {
    Result<UniqueFd> fd = socket::try_accept(listener_.get());
    if (!fd) return tl::unexpected(fd.error());
    if (!*fd) return {};
    if (pending_.size() == kMaxPending) make_room();
    if (Status status = polls_->add(fd->get(), EPOLLIN); !status) return status;
    pending_.push_back({.fd = std::move(*fd),
                        .deadline = Clock::now() + kPendingTime,
                        .message = MessageReader(Greeting::kBytes)});
  }
  return {};
}

// The eldest goes, one that does not know the token before one that does.
void Acceptor::make_room() {
  const auto stranger = std::find_if(pending_.begin(), pending_.end(),
                                     [](const Pending& pending) { return !pending.knows_token; });
  pending_.erase(stranger == pending_.end() ? pending_.begin() : stranger);
}

// True once the peer is proven; an error drops it.
Result<bool> Acceptor::advance(Pending& pending) {
  while (true) {
    const Result<bool> complete = pending.message.receive(pending.fd.get());
    if (!complete || !*complete) return complete;
    if (pending.knows_token) {
      const crypto::Digest expected = proof_of(Role::kConnector, secret_, pending.greeting, pending.nonce);
      if (crypto::equal(expected, pending.message.view())) return true;
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
                      .proof = proof_of(Role::kAcceptor, secret_, *greeting, pending.nonce)};
  return send_message(pending.fd.get(), answer.encode());
}

Clock::time_point Acceptor::next_deadline() const {
  Clock::time_point next = Clock::time_point::max();
  for (const Pending& pending : pending_) next = std::min(next, pending.deadline);
  return next;
}

}  // namespace p2p::tcp
