// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <ostream>
#include <sstream>
#include <system_error>
#include <utility>

#include "eventually.h"

namespace p2p::testing {
namespace {

using Clock = std::chrono::steady_clock;

tl::unexpected<Error> error_of(ErrorCode code, std::string message) {
  return tl::unexpected(Error{code, std::move(message)});
}

tl::unexpected<Error> system_failure(const std::string& what) {
  return error_of(ErrorCode::kSystem, what + ": " + std::system_category().message(errno));
}

bool wait_readable(int fd, Clock::time_point deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd watched{fd, POLLIN, 0};
    const int ready = ::poll(&watched, 1, static_cast<int>(std::max<std::int64_t>(left, 0)));
    if (ready > 0) return true;
    if (ready == 0) return false;
  }
}

void close_one(int& fd) {
  if (fd >= 0) ::close(std::exchange(fd, -1));
}

bool write_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t size = ::write(fd, bytes.data(), bytes.size());
    if (size < 0 && errno != EINTR) return false;
    if (size > 0) bytes = bytes.subspan(static_cast<std::size_t>(size));
  }
  return true;
}

bool write_text(int fd, const std::string& text) { return write_all(fd, std::as_bytes(std::span(text))); }

/// Forks a child that leaves with what `body` returns.
Result<pid_t> start(const std::function<int()>& body) {
  const pid_t pid = ::fork();
  if (pid < 0) return system_failure("fork");
  if (pid != 0) return pid;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::_exit(body());
}

/// Two ends of a line: writing to a dead program is an error then and no signal.
Result<std::array<int, 2>> make_line() {
  std::array<int, 2> ends{-1, -1};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return system_failure("make a socket pair");
  }
  return ends;
}

/// The end of that which is here, once the other is in the child.
Result<int> end_of(std::array<int, 2> ends, const Result<pid_t>& child) {
  close_one(ends[1]);
  if (child) return ends[0];
  close_one(ends[0]);
  return tl::unexpected(child.error());
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const ProcessEnd& end) {
  if (end.code) return out << "code " << *end.code;
  if (end.signal) return out << "signal " << *end.signal;
  return out << "not ended";
}

Result<Process> Process::spawn(const std::vector<std::string>& words, int passed) {
  std::vector<std::string> copies = words;
  std::vector<char*> pointers;
  for (std::string& word : copies) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const auto ends = make_line();
  if (!ends) return tl::unexpected(ends.error());
  const auto pid = start([&] {
    ::dup2((*ends)[1], STDIN_FILENO);
    ::dup2((*ends)[1], STDOUT_FILENO);
    if (passed >= 0 && ::dup2(passed, kPassed) == passed) ::fcntl(passed, F_SETFD, 0);
    ::execvp(pointers[0], pointers.data());
    return 127;
  });
  const auto here = end_of(*ends, pid);
  if (!here) return tl::unexpected(here.error());
  return Process(*pid, *here);
}

Result<Process> Process::forked(const std::function<int()>& body) {
  const auto pid = start(body);
  if (!pid) return tl::unexpected(pid.error());
  return Process(*pid, -1);
}

Result<Process> Process::forked(const std::function<int(const Say&)>& body) {
  const auto ends = make_line();
  if (!ends) return tl::unexpected(ends.error());
  const auto pid = start([&] {
    ::close((*ends)[0]);
    return body([&](const std::string& line) { write_text((*ends)[1], line + "\n"); });
  });
  const auto here = end_of(*ends, pid);
  if (!here) return tl::unexpected(here.error());
  return Process(*pid, *here);
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      socket_(std::exchange(other.socket_, -1)),
      come_(std::move(other.come_)),
      end_(other.end_) {}

Process& Process::operator=(Process&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(socket_, other.socket_);
  std::swap(come_, other.come_);
  std::swap(end_, other.end_);
  return *this;
}

Process::~Process() {
  kill_now();
  close_one(socket_);
}

Status Process::write_line(const std::string& line) {
  const std::string text = line + "\n";
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t size = ::send(socket_, text.data() + done, text.size() - done, MSG_NOSIGNAL);
    if (size < 0 && errno != EINTR) return system_failure(fmt::format("write to process {}", pid_));
    if (size > 0) done += static_cast<std::size_t>(size);
  }
  return {};
}

Status Process::read_more(Time deadline) {
  if (!wait_readable(socket_, deadline)) {
    return error_of(ErrorCode::kTimedOut, fmt::format("process {} said nothing in time", pid_));
  }
  std::array<char, 65536> piece;
  const ssize_t size = ::read(socket_, piece.data(), piece.size());
  if (size < 0 && errno == EINTR) return {};
  if (size <= 0) return error_of(ErrorCode::kPeerGone, fmt::format("process {} has ended", pid_));
  come_.append(piece.data(), static_cast<std::size_t>(size));
  return {};
}

Result<std::string> Process::read_line(std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  std::size_t looked = 0;
  for (;;) {
    if (const std::size_t end = come_.find('\n', looked); end != std::string::npos) {
      std::string line = come_.substr(0, end);
      come_.erase(0, end + 1);
      return line;
    }
    looked = come_.size();
    if (Status more = read_more(deadline); !more) return tl::unexpected(more.error());
  }
}

Result<std::string> Process::read_block(std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  const auto line = read_line(timeout);
  if (!line) return line;
  std::size_t size = 0;
  std::from_chars(line->data(), line->data() + line->size(), size);
  while (come_.size() < size) {
    if (Status more = read_more(deadline); !more) return tl::unexpected(more.error());
  }
  std::string block = come_.substr(0, size);
  come_.erase(0, size);
  return block;
}

void Process::signal(int number) const {
  if (pid_ > 0) ::kill(pid_, number);
}

void Process::stop() const {
  signal(SIGSTOP);
  eventually([&] {  // the system tells its parent once the last thread has stopped
    siginfo_t told{};
    return ::waitid(P_PID, static_cast<id_t>(pid_), &told, WSTOPPED | WNOWAIT | WNOHANG) != 0 ||
           told.si_pid == pid_;
  });
}

void Process::go_on() const { signal(SIGCONT); }

ProcessEnd Process::wait(std::chrono::milliseconds timeout) {
  if (pid_ <= 0) return end_;
  int handle = static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0));
  if (handle >= 0) wait_readable(handle, Clock::now() + timeout);
  close_one(handle);
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) != pid_) return {};
  pid_ = -1;
  end_ = WIFEXITED(status) ? ProcessEnd{.code = WEXITSTATUS(status)} : ProcessEnd{.signal = WTERMSIG(status)};
  return end_;
}

void Process::kill_now() {
  signal(SIGKILL);
  wait(kLimit);
}

ProcessEnd in_child(const std::function<int()>& body, std::chrono::milliseconds limit) {
  auto child = Process::forked(body);
  return child ? child->wait(limit) : ProcessEnd{};
}

bool write_block(std::span<const std::byte> bytes) {
  return write_text(STDOUT_FILENO, fmt::format("{}\n", bytes.size())) && write_all(STDOUT_FILENO, bytes);
}

Status run(const std::vector<std::string>& words) {
  auto process = Process::spawn(words);
  if (!process) return tl::unexpected(process.error());
  const ProcessEnd end = process->wait(kLimit);
  if (end == ProcessEnd{.code = 0}) return {};
  std::ostringstream said;
  said << end;
  return error_of(ErrorCode::kSystem, fmt::format("{}: {}", fmt::join(words, " "), said.str()));
}

Usage usage_of(pid_t pid) {
  const std::string root = fmt::format("/proc/{}", pid);
  Usage usage;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(root + "/fd", ignored)) {
    // A thread's room for copies (base/safe_copy.h) is made when it first needs one.
    const auto target = std::filesystem::read_symlink(entry, ignored);
    if (target.string().find("p2p-copies") == std::string::npos) ++usage.open_files;
  }
  std::ifstream status(root + "/status");
  for (std::string word; status >> word;) {
    if (word == "Threads:") status >> usage.threads;
    if (word == "VmRSS:") {
      status >> usage.resident_bytes;
      usage.resident_bytes *= 1024;
    }
  }
  std::ifstream stat(root + "/stat");
  std::string words;
  std::getline(stat, words);
  std::istringstream after(words.substr(std::min(words.size(), words.rfind(')') + 1)));
  constexpr int kUserTime = 14;  // as of proc(5); the name, with its bracket, is the second
  long ticks = 0;
  for (int i = 3; i <= kUserTime + 1; ++i) {
    std::string word;
    after >> word;
    if (i >= kUserTime) ticks += std::atol(word.c_str());
  }
  usage.cpu_time = std::chrono::milliseconds(ticks * 1000 / ::sysconf(_SC_CLK_TCK));
  return usage;
}

std::vector<std::uint16_t> listening_ports(pid_t pid) {
  const std::string root = fmt::format("/proc/{}", pid);
  std::vector<std::string> sockets;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(root + "/fd", ignored)) {
    const std::string target = std::filesystem::read_symlink(entry.path(), ignored).string();
    if (target.starts_with("socket:[")) sockets.push_back(target.substr(8, target.size() - 9));
  }
  std::vector<std::uint16_t> ports;
  for (const char* table : {"/net/tcp", "/net/tcp6"}) {
    std::ifstream lines(root + table);
    std::string line;
    std::getline(lines, line);
    while (std::getline(lines, line)) {
      std::istringstream words(line);
      std::string number, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
      words >> number >> local >> remote >> state >> queues >> timer >> retransmits >> uid >> timeout >>
          inode;
      constexpr const char* kListen = "0A";
      if (state != kListen || std::find(sockets.begin(), sockets.end(), inode) == sockets.end()) continue;
      std::uint16_t port = 0;
      const char* const digits = local.data() + local.rfind(':') + 1;
      std::from_chars(digits, local.data() + local.size(), port, 16);
      ports.push_back(port);
    }
  }
  return ports;
}

}  // namespace p2p::testing
