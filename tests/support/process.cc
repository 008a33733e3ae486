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
#include <sstream>
#include <system_error>
#include <utility>

#include "bounds.h"
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

}  // namespace

Result<Process> Process::spawn(const std::vector<std::string>& words) {
  std::vector<std::string> copies = words;
  std::vector<char*> pointers;
  for (std::string& word : copies) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  std::array<int, 2> in{-1, -1};
  std::array<int, 2> out{-1, -1};
  // A socket, so that writing to a dead program is an error and no signal.
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in.data()) != 0) {
    return system_failure("make a socket pair");
  }
  if (::pipe2(out.data(), O_CLOEXEC) != 0) {
    close_one(in[0]);
    close_one(in[1]);
    return system_failure("make a pipe");
  }
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::dup2(in[0], STDIN_FILENO);
    ::dup2(out[1], STDOUT_FILENO);
    ::execvp(pointers[0], pointers.data());
    ::_exit(127);
  }
  close_one(in[0]);
  close_one(out[1]);
  if (pid > 0) return Process(pid, in[1], out[0]);
  close_one(in[1]);
  close_one(out[0]);
  return system_failure("fork");
}

Process::Process(Process&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      input_(std::exchange(other.input_, -1)),
      output_(std::exchange(other.output_, -1)),
      come_(std::move(other.come_)) {}

Process& Process::operator=(Process&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(input_, other.input_);
  std::swap(output_, other.output_);
  std::swap(come_, other.come_);
  return *this;
}

Process::~Process() {
  kill_now();
  close_one(input_);
  close_one(output_);
}

Status Process::write_line(const std::string& line) {
  const std::string text = line + "\n";
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t size = ::send(input_, text.data() + done, text.size() - done, MSG_NOSIGNAL);
    if (size < 0 && errno != EINTR) return system_failure(fmt::format("write to process {}", pid_));
    if (size > 0) done += static_cast<std::size_t>(size);
  }
  return {};
}

Result<std::string> Process::read_line(std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  for (;;) {
    if (const std::size_t end = come_.find('\n'); end != std::string::npos) {
      std::string line = come_.substr(0, end);
      come_.erase(0, end + 1);
      return line;
    }
    if (!wait_readable(output_, deadline)) {
      return error_of(ErrorCode::kTimedOut,
                      fmt::format("process {} said nothing for {} ms", pid_, timeout.count()));
    }
    std::array<char, 65536> piece;
    const ssize_t size = ::read(output_, piece.data(), piece.size());
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return error_of(ErrorCode::kPeerGone, fmt::format("process {} has ended", pid_));
    come_.append(piece.data(), static_cast<std::size_t>(size));
  }
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

Result<int> Process::wait(std::chrono::milliseconds timeout) {
  const int handle = static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0));
  if (handle < 0) return system_failure(fmt::format("watch process {}", pid_));
  const bool ended = wait_readable(handle, Clock::now() + timeout);
  ::close(handle);
  if (!ended) {
    return error_of(ErrorCode::kTimedOut,
                    fmt::format("process {} did not end in {} ms", pid_, timeout.count()));
  }
  int status = 0;
  if (::waitpid(std::exchange(pid_, -1), &status, 0) < 0) return system_failure("wait for a process");
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void Process::kill_now() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(std::exchange(pid_, -1), nullptr, 0);
}

Status run(const std::vector<std::string>& words) {
  auto process = Process::spawn(words);
  if (!process) return tl::unexpected(process.error());
  const auto status = process->wait(kLimit);
  if (!status) return tl::unexpected(status.error());
  if (*status != 0) {
    return error_of(ErrorCode::kSystem,
                    fmt::format("{} ended with status {}", fmt::join(words, " "), *status));
  }
  return {};
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
