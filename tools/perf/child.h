// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "p2p/result.h"

namespace p2p::perf {

/// Owns a child process and a pipe from it; kills it at the end if it still runs. A child dies with its
/// parent. Movable.
class Child {
 public:
  /// Runs this very program with other arguments; the pipe is its standard output.
  static Result<Child> run_self(const std::vector<std::string>& arguments);

  /// Runs `body` in a copy of this process, which must have one thread. `body` gets the writing end.
  static Result<Child> fork_body(const std::function<int(int pipe)>& body);

  Child(Child&& other) noexcept;
  Child& operator=(Child&&) = delete;
  ~Child();

  /// The next line from the pipe without its end. An error once the child has closed it.
  Result<std::string> read_line(std::chrono::milliseconds timeout);

  /// The exit status, 128 + signal for a killed child.
  Result<int> wait(std::chrono::milliseconds timeout);

  pid_t pid() const { return pid_; }

 private:
  Child(pid_t pid, int pipe) : pid_(pid), pipe_(pipe) {}

  pid_t pid_;
  int pipe_;
  std::string come_;
};

}  // namespace p2p::perf
