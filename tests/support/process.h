// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bounds.h"
#include "p2p/result.h"

namespace p2p::testing {

/// How a process ended: by itself, with a code, or by a signal. With neither it has not ended.
struct ProcessEnd {
  std::optional<int> code{};
  std::optional<int> signal{};

  bool over() const { return code || signal; }
  bool operator==(const ProcessEnd&) const = default;
};
std::ostream& operator<<(std::ostream& out, const ProcessEnd& end);

/// Owns a child of this process, a program or a function, and talks with it by lines; kills it at the end.
/// The child dies with the thread that started it. Every wait has a deadline. Movable, one thread.
class Process {
 public:
  /// What a function in a child says lines with to the process that started it.
  using Say = std::function<void(const std::string& line)>;

  static constexpr int kPassed = 3;

  /// Starts `words[0]`, found by path. Its input and output are this one's to write and read; it has
  /// `passed` as its descriptor kPassed.
  static Result<Process> spawn(const std::vector<std::string>& words, int passed = -1);

  /// Forks a child that leaves with what `body` returns. It has no descriptor but this process's, and
  /// another for `Say`. Nothing can be written to it.
  static Result<Process> forked(const std::function<int()>& body);
  static Result<Process> forked(const std::function<int(const Say&)>& body);

  Process(Process&& other) noexcept;
  Process& operator=(Process&& other) noexcept;
  ~Process();

  /// -1 once it has ended and that was waited for.
  pid_t pid() const { return pid_; }

  Status write_line(const std::string& line);

  /// The next line without its end; kPeerGone once the program has closed its output.
  Result<std::string> read_line(std::chrono::milliseconds timeout);

  /// The bytes of the child's `write_block`; errors as read_line's.
  Result<std::string> read_block(std::chrono::milliseconds timeout);

  void signal(int number) const;

  /// SIGSTOP, and waits until none of its threads runs; SIGCONT.
  void stop() const;
  void go_on() const;

  /// The same again once it has ended.
  ProcessEnd wait(std::chrono::milliseconds timeout);

  /// SIGKILL, and waits for the end.
  void kill_now();

 private:
  using Time = std::chrono::steady_clock::time_point;

  Process(pid_t pid, int socket) : pid_(pid), socket_(socket) {}

  Status read_more(Time deadline);

  pid_t pid_;
  int socket_;
  std::string come_;
  ProcessEnd end_;
};

/// Runs `body` in a child, which has no descriptor that this process does not have; kills it after `limit`.
ProcessEnd in_child(const std::function<int()>& body, std::chrono::milliseconds limit = kLimit);

/// For a program under `spawn`: to its output, for `read_block`. False if nobody reads.
bool write_block(std::span<const std::byte> bytes);

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
