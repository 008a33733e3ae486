// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "p2p/result.h"

namespace p2p::http {

struct Post {
  std::string host;  ///< as the server is called, with its port
  std::string path;
  std::string type;
  std::string body;
};

struct Answer {
  unsigned status = 0;
  std::string body;
};

/// Sends a request over a connected, non-blocking socket, and reads the answer, of which nothing but its form
/// was checked. The server is asked to close then. kTimedOut from the deadline on, kMessageTooLong for a body
/// of more than `most_bytes`, kPeerGone for a connection that ends before, kProtocol for what is no HTTP,
/// kUnavailable if this library has no client.
Result<Answer> post(int fd, const Post& request, std::chrono::steady_clock::time_point deadline,
                    std::uint64_t most_bytes);

}  // namespace p2p::http
