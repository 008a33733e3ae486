// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "engine/session/session.h"

#include <utility>

#include "engine/session/session_core.h"

namespace p2p::engine {

Session::Session(std::shared_ptr<Core> core) : core_(std::move(core)) {}

Session::~Session() { core_->request_close(Error{ErrorCode::kCancelled, "the session was dropped"}); }

std::shared_ptr<Session> Session::dial(Reactor& reactor, std::string host, std::uint16_t port,
                                       SessionConfig config, Handlers handlers,
                                       std::chrono::steady_clock::time_point deadline) {
  auto core = std::make_shared<Core>(reactor, std::move(config), std::move(handlers), deadline);
  reactor.post([core, host = std::move(host), port] { core->dial(host, port); });
  return std::make_shared<Session>(std::move(core));
}

std::shared_ptr<Session> Session::accept(Reactor& reactor, UniqueFd socket, SessionConfig config,
                                         Handlers handlers, std::chrono::steady_clock::time_point deadline) {
  auto core = std::make_shared<Core>(reactor, std::move(config), std::move(handlers), deadline);
  // Tasks are copyable; a descriptor is not.
  reactor.post(
      [core, held = std::make_shared<UniqueFd>(std::move(socket))] { core->adopt(std::move(*held)); });
  return std::make_shared<Session>(std::move(core));
}

void Session::send(const wire::Message& message) { core_->enqueue(message); }

void Session::close(Error reason) { core_->request_close(std::move(reason)); }

void Session::drop(Error reason) { core_->finish(std::move(reason)); }

void Session::hand_over(Handlers handlers) { core_->hand_over(std::move(handlers)); }

}  // namespace p2p::engine
