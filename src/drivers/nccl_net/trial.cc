// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/nccl_net/trial.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>

#include "base/error.h"
#include "base/unique_fd.h"
#include "base/wait_for_fd.h"
#include "drivers/nccl_net/tcpx.h"

namespace p2p::nccl_net {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::chrono::seconds kWithin{20};
constexpr int kReturned = 0;
constexpr int kExited = 1;

void say_nothing(int /*level*/, unsigned long /*subsystems*/, const char* /*where*/, int /*line*/,
                 const char* /*format*/, ...) {}

void mute() {
  const int nowhere = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (nowhere < 0) return;
  for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(nowhere, standard);
}

bool comes_within(const UniqueFd& event, milliseconds within) {
  return wait_for_fd(event.get(), POLLIN, steady_clock::now() + within);
}

/// Ends the child, and says so to the process that waits for it.
[[noreturn]] void leave(int tell, int code) {
  const char byte = static_cast<char>(code);
  static_cast<void>(!::write(tell, &byte, 1));
  ::_exit(code);
}

ChildEnd end_of(pid_t child, const UniqueFd& told) {
  int status = 0;
  pid_t waited = 0;
  do waited = ::waitpid(child, &status, 0);
  while (waited < 0 && errno == EINTR);
  if (waited == child && WIFSIGNALED(status)) return {.crashed = true, .code = WTERMSIG(status)};
  if (waited == child) return {.code = WEXITSTATUS(status)};
  char code = 0;  // no status is left: by its own word
  const bool said = ::read(told.get(), &code, 1) == 1;
  return {.crashed = !said, .code = code};
}

}  // namespace

Result<ChildEnd> run_in_child(milliseconds within, const std::function<void()>& body) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0)
    return tl::unexpected(system_error("make a pipe to a child process"));
  const UniqueFd told(ends[0]);
  const int tell = ends[1];  // a number: a child has no UniqueFd of its parent's
  const pid_t child = ::fork();
  if (child == 0) {
    ::on_exit([](int /*code*/, void* to) { leave(*static_cast<int*>(to), kExited); }, &ends[1]);
    body();
    leave(tell, kReturned);
  }
  ::close(tell);
  if (child < 0) return tl::unexpected(system_error("start a child process"));
  // Where no status is left it may have ended and be gone, and its number be another's.
  const UniqueFd ended = UniqueFd::of(::syscall, SYS_pidfd_open, child, 0);
  const bool in_time = ended ? comes_within(ended, within) : errno == ESRCH;
  if (!in_time) ::kill(child, SIGKILL);
  ChildEnd end = end_of(child, told);
  end.in_time = in_time;
  return end;
}

Status try_init(Net& net, CudaInUse cuda) {
  const auto end = run_in_child(kWithin, [&net] {
    mute();
    net.init(say_nothing);
  });
  if (!end) return fail(end.error().code, "try its init: {}", end.error().message);
  const bool crashes_only = cuda == CudaInUse::kYes;
  if (!end->in_time) {
    if (crashes_only) return {};
    return fail(ErrorCode::kUnavailable, "its init, tried in a child process, was not through after {} s",
                kWithin.count());
  }
  if (!end->crashed && (crashes_only || end->code == kReturned)) return {};
  const bool tcpx = net.name() != nullptr && is_tcpx(net.name());
  return fail(ErrorCode::kUnavailable, "its init ends the process{}, tried in a child{}",
              end->crashed && end->code != 0 ? fmt::format(" by signal {}", end->code) : "",
              tcpx ? ": GPUDirect-TCPX does so where CUDA has no device" : "");
}

}  // namespace p2p::nccl_net
