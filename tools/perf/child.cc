// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "child.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <utility>

#include "failure.h"

namespace p2p::perf {
namespace {

using Clock = std::chrono::steady_clock;

/// False once the deadline has passed.
bool wait_readable(int fd, Clock::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    pollfd watched{fd, POLLIN, 0};
    const int ready = ::poll(&watched, 1, static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
    if (ready > 0) return true;
    if (ready == 0) return false;
  }
}

}  // namespace

Result<Child> Child::fork_body(const std::function<int(int pipe)>& body) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return fail_errno("make a pipe");
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) {
    const int error = errno;
    ::close(ends[0]);
    ::close(ends[1]);
    return fail_errno("fork", error);
  }
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::close(ends[0]);
    ::_exit(::getppid() == parent ? body(ends[1]) : 1);
  }
  ::close(ends[1]);
  return Child(pid, ends[0]);
}

Result<Child> Child::run_self(const std::vector<std::string>& arguments) {
  std::vector<std::string> words{"p2p-perf"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  // Only calls that are safe after fork in a process with threads.
  return fork_body([&](int pipe) {
    ::dup2(pipe, STDOUT_FILENO);
    ::execv("/proc/self/exe", pointers.data());
    return 127;
  });
}

Child::Child(Child&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      pipe_(std::exchange(other.pipe_, -1)),
      come_(std::move(other.come_)) {}

Child::~Child() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  if (pipe_ >= 0) ::close(pipe_);
}

Result<std::string> Child::read_line(std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  for (;;) {
    if (const std::size_t end = come_.find('\n'); end != std::string::npos) {
      std::string line = come_.substr(0, end);
      come_.erase(0, end + 1);
      return line;
    }
    if (!wait_readable(pipe_, deadline)) {
      return fail(ErrorCode::kTimedOut, "the child process {} said nothing for {} ms", pid_, timeout.count());
    }
    std::array<char, 4096> piece;
    const ssize_t size = ::read(pipe_, piece.data(), piece.size());
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return fail(ErrorCode::kPeerGone, "the child process {} ended its output", pid_);
    come_.append(piece.data(), static_cast<std::size_t>(size));
  }
}

Result<int> Child::wait(std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  // Its output ends with it. A sandbox may forbid pidfd_open, which would tell.
  std::array<char, 4096> rest;
  while (wait_readable(pipe_, deadline)) {
    const ssize_t size = ::read(pipe_, rest.data(), rest.size());
    if (size == 0 || (size < 0 && errno != EINTR)) break;
  }
  int status = 0;
  const bool ended = Clock::now() < deadline;
  const pid_t waited = ::waitpid(pid_, &status, ended ? 0 : WNOHANG);
  if (waited < 0) return fail_errno("wait for a child process");
  if (waited == 0) {
    return fail(ErrorCode::kTimedOut, "the child process {} did not end in {} ms", pid_, timeout.count());
  }
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace p2p::perf
