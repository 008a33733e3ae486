// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "p2p/result.h"

namespace p2p::testing {

/// Owns a running program with pipes to its input and from its output; kills it at the end. Every wait has a
/// deadline. Movable, one thread.
class Process {
 public:
  /// Starts `words[0]`, found by path; it dies with this process.
  static Result<Process> spawn(const std::vector<std::string>& words);

  Process(Process&& other) noexcept;
  Process& operator=(Process&& other) noexcept;
  ~Process();

  pid_t pid() const { return pid_; }

  Status write_line(const std::string& line);

  /// The next line without its end; kPeerGone once the program has closed its output.
  Result<std::string> read_line(std::chrono::milliseconds timeout);

  void signal(int number) const;

  /// SIGSTOP, and waits until none of its threads runs; SIGCONT.
  void stop() const;
  void go_on() const;

  /// The exit status, 128 + signal for one that was killed.
  Result<int> wait(std::chrono::milliseconds timeout);

  /// SIGKILL, and waits for the end.
  void kill_now();

 private:
  Process(pid_t pid, int input, int output) : pid_(pid), input_(input), output_(output) {}

  pid_t pid_;
  int input_;
  int output_;
  std::string come_;
};

/// Runs a program to its end; success if its status is 0.
Status run(const std::vector<std::string>& words);

/// What /proc says of a process.
struct Usage {
  long open_files = 0;
  long threads = 0;
  long resident_bytes = 0;
  std::chrono::milliseconds cpu_time{0};
};
Usage usage_of(pid_t pid);

/// The TCP ports that a process listens on.
std::vector<std::uint16_t> listening_ports(pid_t pid);

}  // namespace p2p::testing
