// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "worker.h"

#include <fmt/format.h>

#include <stdexcept>
#include <utility>

#include "support/bounds.h"
#include "support/command.h"

namespace p2p::chaos {

using std::chrono::milliseconds;

Worker::Worker(std::vector<std::string> environment, std::vector<std::string> prefix, const std::string& gpu)
    : environment_(std::move(environment)), prefix_(std::move(prefix)), board_(gpu) {}

void Worker::start() {
  std::vector<std::string> words = prefix_;
  words.emplace_back("env");
  words.insert(words.end(), environment_.begin(), environment_.end());
  words.push_back(fmt::format("UCCL_P2P_PORT={}", port_));
  words.emplace_back(P2P_CHAOS_WORKER);
  words.push_back(board_.name());
  auto process = testing::Process::spawn(words);
  if (!process) throw std::runtime_error(process.error().message);
  process_.emplace(std::move(*process));
  answers_.clear();
  notes_.clear();
  const auto address = call("address");
  testing::Words told(address.value());
  address_ = told.text();
  port_ = static_cast<std::uint16_t>(told.number());
}

void Worker::tell(const std::string& command) {
  if (!process_->write_line("0 " + command)) throw std::runtime_error("a worker has ended by itself");
}

std::uint64_t Worker::ask(const std::string& command) {
  if (!process_->write_line(fmt::format("{} {}", ++asked_, command))) {
    throw std::runtime_error("a worker has ended by itself");
  }
  return asked_;
}

Result<std::string> Worker::answer(std::uint64_t question, milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  for (;;) {
    if (const auto found = answers_.find(question); found != answers_.end()) {
      const std::string words = std::move(found->second);
      answers_.erase(found);
      return testing::parse_answer(words);
    }
    const auto left = std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0)
      throw std::runtime_error(fmt::format("a worker did not answer for {} ms", limit.count()));
    take_line(left);
  }
}

Result<std::string> Worker::call(const std::string& command) { return answer(ask(command), testing::kLimit); }

std::deque<Note> Worker::take_notes() {
  while (take_line(milliseconds(0))) {
  }
  return std::exchange(notes_, {});
}

void Worker::kill_now() { process_.reset(); }

// False if none came in time.
bool Worker::take_line(milliseconds limit) {
  const auto line = process_->read_line(limit);
  if (!line) {
    if (line.error().code == ErrorCode::kTimedOut) return false;
    throw std::runtime_error("a worker has ended by itself");
  }
  testing::Words words(*line);
  if (line->starts_with("note ")) {
    words.text();
    Note note;
    note.connection = words.number();
    note.bytes = words.number();
    note.number = words.number();
    notes_.push_back(note);
  } else {
    const std::uint64_t question = words.number();
    answers_[question] = words.rest();
  }
  return true;
}

}  // namespace p2p::chaos
