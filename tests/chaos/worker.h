// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "board.h"
#include "p2p/result.h"
#include "support/process.h"

namespace p2p::chaos {

/// A notification that a worker took.
struct Note {
  std::size_t connection = 0;
  std::size_t bytes = 0;
  std::uint64_t number = 0;
};

/// A worker process (worker_main.cc) and the memory that it shares with the world, which outlives it. One
/// thread. What goes wrong with the process itself throws std::runtime_error.
class Worker {
 public:
  /// `environment` are words like NAME=VALUE; `prefix` goes in front of the program. `gpu`: as Board's.
  Worker(std::vector<std::string> environment, std::vector<std::string> prefix, const std::string& gpu);

  /// Starts it, again on the same port if it ran before.
  void start();

  bool alive() const { return process_.has_value(); }
  pid_t pid() const { return process_->pid(); }
  Board& board() { return board_; }
  const std::string& address() const { return address_; }
  std::uint16_t port() const { return port_; }

  /// Sends a command that is not answered.
  void tell(const std::string& command);

  /// Sends one whose answer `answer` waits for.
  std::uint64_t ask(const std::string& command);

  /// Throws if none comes in time.
  Result<std::string> answer(std::uint64_t question, std::chrono::milliseconds limit);
  Result<std::string> call(const std::string& command);

  /// The notifications that have come.
  std::deque<Note> take_notes();

  /// As of its process. A stopped one is killed all the same, and otherwise hears nothing.
  void stop() const { process_->stop(); }
  void go_on() const { process_->go_on(); }

  /// SIGKILL, and waits until the process is gone.
  void kill_now();

 private:
  bool take_line(std::chrono::milliseconds limit);

  const std::vector<std::string> environment_;
  const std::vector<std::string> prefix_;
  Board board_;
  std::optional<testing::Process> process_;
  std::string address_;
  std::uint16_t port_ = 0;
  std::uint64_t asked_ = 0;
  std::map<std::uint64_t, std::string> answers_;
  std::deque<Note> notes_;
};

}  // namespace p2p::chaos
