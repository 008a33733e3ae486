// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cma/peer.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "drivers/socket/local_socket.h"
#include "transport/process_end.h"

namespace p2p::cma {

Status Peer::watch(const UniqueFd& fd) const {
  epoll_event event{.events = EPOLLIN, .data = {.fd = fd.get()}};
  if (::epoll_ctl(events.get(), EPOLL_CTL_ADD, fd.get(), &event) == 0) return {};
  return tl::unexpected(system_error("watch a cma peer: epoll_ctl"));
}

bool Peer::is_alive() const { return is_open(process, socket); }

void Peer::watch_process() {
  if (process) return;
  process = socket::watch_process(socket);
  if (process && !watch(process)) process.reset();  // the socket tells as well
}

// Nobody takes wake-ups off the socket from now on.
bool Peer::stop_copying() {
  ::shutdown(socket.get(), SHUT_WR);
  epoll_event event{.events = EPOLLRDHUP, .data = {.fd = socket.get()}};
  return ::epoll_ctl(events.get(), EPOLL_CTL_MOD, socket.get(), &event) == 0;
}

void Peer::hang_up() {
  if (socket) ::shutdown(socket.get(), SHUT_RDWR);
  socket.reset();
}

Error Peer::gone() const {
  const std::string peer = pid == 0 ? "the peer's process" : fmt::format("process {}", pid);
  return {ErrorCode::kPeerGone, peer + " ended or closed its cma channel"};
}

std::string Peer::describe() const {
  if (reaches) return fmt::format("process {} -> {}", ::getpid(), pid);
  return fmt::format("process {} -> one of another PID namespace, through shared memory", ::getpid());
}

}  // namespace p2p::cma
