// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "p2p/result.h"

namespace p2p::http {

/// What a client asked for, as far as anybody here wants to know.
struct Request {
  std::string path;    ///< without a query
  std::string accept;  ///< the header of that name
};

struct Reply {
  unsigned status = 200;
  std::string type;
  std::string body;
};

/// Answers GET and HEAD from a thread of its own, one client after the other, one request a connection. So
/// many clients are held at once, and one more takes the place of the oldest; each has so much time for all
/// of it.
class Server {
 public:
  using Handler = std::function<Reply(const Request&)>;

  struct Settings {
    std::string place;     ///< "address:port" or "[address]:port"; port 0: any
    bool anybody = false;  ///< may be an address that other hosts reach
    unsigned most_clients = 16;
    std::chrono::milliseconds patience{5000};
  };

  /// kInvalidArgument for a place that is none, kPermissionDenied for one that others reach, kUnavailable if
  /// this library has no server, kSystem for a place that cannot be had now. `handler` runs on the server's
  /// thread.
  static Result<std::unique_ptr<Server>> start(const Settings& settings, Handler handler);

  /// Cuts clients off. Returns when the thread has ended.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// "address:port", with the port that the system chose.
  const std::string& place() const;

 private:
  struct Body;
  explicit Server(std::unique_ptr<Body> body);
  std::unique_ptr<Body> body_;
};

}  // namespace p2p::http
