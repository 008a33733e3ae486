// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/loop/redialer.h"

#include <utility>

#include "base/error.h"

namespace p2p::engine {

Redialer::Redialer(Reactor& reactor, std::string host, std::uint16_t port, Clock::time_point deadline)
    : reactor_(reactor), host_(std::move(host)), port_(port), deadline_(deadline) {}

void Redialer::dial(Dialer::Done done) {
  dialer_ = std::make_shared<Dialer>(reactor_, host_, port_);
  dialer_->start([this, done = std::move(done)](Result<UniqueFd> socket) {
    dialer_ = nullptr;
    done(std::move(socket));
  });
}

bool Redialer::dial_again(Dialer::Done done) {
  const auto pause = backoff_.next();
  if (!pause || Clock::now() + *pause >= deadline_) return false;
  pause_ = reactor_.after(*pause, [this, done = std::move(done)] { dial(done); });
  return true;
}

void Redialer::stop() {
  reactor_.cancel(pause_);
  if (dialer_) dialer_->stop();
  dialer_ = nullptr;
}

std::string Redialer::describe() const { return dialer_ ? dialer_->describe() : "connect to " + peer(); }

std::string Redialer::peer() const { return fmt::format("{}:{}", host_, port_); }

}  // namespace p2p::engine
