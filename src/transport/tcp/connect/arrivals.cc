// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/connect/arrivals.h"

#include <sys/epoll.h>

#include <utility>

namespace p2p::tcp {
namespace {

// Who knows the token is the peer, or has listened to it: more than this come only from the latter.
constexpr std::size_t kMaxWaiting = 8;

}  // namespace

Arrivals::Arrivals(std::shared_ptr<StreamPort> port, const StreamPort::Token& token, socket::PollSet& polls)
    : port_(std::move(port)), token_(token), polls_(polls) {
  port_->expect(token_, [this](UniqueFd socket) { put(std::move(socket)); });
}

Arrivals::~Arrivals() { port_->forget(token_); }

void Arrivals::put(UniqueFd socket) {
  MutexLock lock(mutex_);
  if (waiting_.size() == kMaxWaiting || !polls_.add(socket.get(), EPOLLIN)) return;
  waiting_.push_back(std::move(socket));
}

std::vector<UniqueFd> Arrivals::take() {
  MutexLock lock(mutex_);
  return std::exchange(waiting_, {});
}

}  // namespace p2p::tcp
