// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "base/error.h"
#include "drivers/http/client.h"
#include "drivers/http/server.h"

namespace p2p::http {

struct Server::Body {
  std::string place;
};

Server::Server(std::unique_ptr<Body> body) : body_(std::move(body)) {}
Server::~Server() = default;
const std::string& Server::place() const { return body_->place; }

Result<std::unique_ptr<Server>> Server::start(const Settings& settings, Handler /*handler*/) {
  return fail(ErrorCode::kUnavailable, "serve at {}: this library was built without Boost.Beast",
              settings.place);
}

Result<Answer> post(int /*fd*/, const Post& /*request*/, std::chrono::steady_clock::time_point /*deadline*/,
                    std::uint64_t /*most_bytes*/) {
  return fail(ErrorCode::kUnavailable, "this library was built without Boost.Beast");
}

}  // namespace p2p::http
