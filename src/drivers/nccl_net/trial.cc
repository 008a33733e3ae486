// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/nccl_net/trial.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "base/error.h"
#include "base/unique_fd.h"
#include "drivers/nccl_net/tcpx.h"

namespace p2p::nccl_net {
namespace {

constexpr int kWithinMs = 20000;
constexpr int kReturned = 0;
constexpr int kExited = 1;

void say_nothing(int /*level*/, unsigned long /*subsystems*/, const char* /*where*/, int /*line*/,
                 const char* /*format*/, ...) {}

/// The child's. Nothing of this process' own end may run there: buffers would be written twice, and threads
/// waited for that a child does not have.
[[noreturn]] void run(Net& net) {
  const int nowhere = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (nowhere >= 0) {
    for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(nowhere, standard);
  }
  ::on_exit([](int /*code*/, void* /*unused*/) { ::_exit(kExited); }, nullptr);
  net.init(say_nothing);
  ::_exit(kReturned);
}

}  // namespace

Status try_init(Net& net, CudaInUse cuda) {
  const pid_t child = ::fork();
  if (child < 0) return tl::unexpected(system_error("try init in a child process"));
  if (child == 0) run(net);
  const UniqueFd ended = UniqueFd::of(::syscall, SYS_pidfd_open, child, 0);
  pollfd poll{ended.get(), POLLIN, 0};
  const bool in_time = ended && ::poll(&poll, 1, kWithinMs) > 0;
  if (!in_time) ::kill(child, SIGKILL);
  const bool crashes_only = cuda == CudaInUse::kYes;
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!in_time) {
    if (crashes_only) return {};
    return fail(ErrorCode::kUnavailable, "its init, tried in a child process, was not through after {} s",
                kWithinMs / 1000);
  }
  if (WIFEXITED(status) && (crashes_only || WEXITSTATUS(status) == kReturned)) return {};
  const bool tcpx = net.name() != nullptr && is_tcpx(net.name());
  return fail(ErrorCode::kUnavailable, "its init ends the process{}, tried in a child{}",
              WIFSIGNALED(status) ? fmt::format(" by signal {}", WTERMSIG(status)) : "",
              tcpx ? ": GPUDirect-TCPX does so where CUDA has no device" : "");
}

}  // namespace p2p::nccl_net
