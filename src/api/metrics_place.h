// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "api/metrics_merge.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "drivers/http/server.h"
#include "drivers/socket/local_socket.h"

namespace p2p {

/// A place (address and port) at which all processes of a user on a host, of one network namespace, answer
/// together. The first one serves it. The others keep a Unix socket open to that one, are asked over it, and
/// one of them serves the place once that one is gone.
class MetricsPlace {
 public:
  using Answer = std::function<http::Reply(const http::Request&)>;

  /// What a process has for its answer. One that is later is told of as one that does not answer, and is not
  /// waited for again until its late answer has come.
  static constexpr std::chrono::milliseconds kPatience{2000};

  /// `own` answers for this process, on a thread of this object. Errors are those of `http::Server::start`,
  /// but for a place that something else has taken: that is tried again until it is free.
  static Result<std::unique_ptr<MetricsPlace>> join(const http::Server::Settings& settings, Answer own);

  ~MetricsPlace();
  MetricsPlace(const MetricsPlace&) = delete;
  MetricsPlace& operator=(const MetricsPlace&) = delete;

  /// "address:port", with the port that the system chose; empty while another process serves it.
  std::string served() const;

 private:
  using Deadline = socket::Deadline;

  /// A process that is asked.
  struct Other {
    UniqueFd socket;
    std::string process;      ///< empty: it has not said yet
    std::uint64_t asked = 0;  ///< the number of the question that it has not answered; 0: none
  };

  MetricsPlace(const http::Server::Settings& settings, Answer own);
  Status serve();
  http::Reply together(const http::Request& request);
  void welcome();
  bool ask(Other& other, const http::Request& request);
  static Result<http::Reply> answer_of(Other& other, Deadline deadline);
  void run();
  void answer_until_gone(const UniqueFd& server) const;
  bool stops_within(std::chrono::milliseconds time) const;

  const http::Server::Settings settings_;
  const Answer own_;
  const std::string name_;  // of the Unix socket; empty: this process is alone
  UniqueFd stop_;           // readable: the thread ends
  std::thread thread_;

  // The server's thread has these once there is a server.
  socket::Listener listener_;
  std::vector<Other> others_;
  std::uint64_t questions_ = 0;

  mutable Mutex mutex_;
  std::unique_ptr<http::Server> server_ P2P_GUARDED_BY(mutex_);  // ends first
};

}  // namespace p2p
