// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cuda_ipc/twin_link.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "drivers/crypto/mutual_proof.h"
#include "transport/cuda_ipc/memory/chunk_protocol.h"
#include "transport/process_end.h"

namespace p2p::cuda_ipc {
namespace {

// False: nothing would tell of an end.
bool watch(const UniqueFd& events, const UniqueFd& fd, std::uint32_t what) {
  epoll_event event{.events = what, .data = {.fd = fd.get()}};
  return !fd || ::epoll_ctl(events.get(), EPOLL_CTL_ADD, fd.get(), &event) == 0;
}

}  // namespace

Result<TwinLink> TwinLink::open(const ChannelSetup& setup, const socket::Place& place) {
  TwinLink link;
  if (setup.control == nullptr) return link;
  const auto number = place.number();
  if (!number) return tl::unexpected(number.error());
  link.own_ = TwinAddress{.place = *number};
  link.place_ = place;
  link.role_ = setup.role;
  link.secret_ = setup.secret;
  if (setup.role == Role::kConnector) return link;
  Token& name = link.own_->listener;
  if (const Status drawn = crypto::random_bytes(name); !drawn) return tl::unexpected(drawn.error());
  auto listener = socket::listen_locally(name_of(name), place);
  if (!listener) return tl::unexpected(std::move(listener.error()));
  link.listener_ = std::move(*listener);
  return link;
}

Result<TwinLink::Meeting> TwinLink::connect(const ProcessId& mine, const ProcessId& theirs,
                                            const std::optional<TwinAddress>& twin) {
  const bool accepts = role_ == Role::kAcceptor;
  const bool reached = own_ && twin && twin->place == own_->place;
  if (!reached || (!accepts && twin->listener == Token{})) {
    listener_.reset();
    return Meeting::kNone;
  }
  if (accepts) return Meeting::kAwaited;
  auto socket = socket::connect_locally(name_of(twin->listener), connectors_name(twin->listener), place_);
  if (!socket && socket.error().code == ErrorCode::kPermissionDenied) {
    log(LogLevel::kWarning,
        "cuda_ipc to process {}: memory counts as released when the connection has ended, though a copy of "
        "the peer's may still come: {}",
        theirs.pid, socket.error().message);
    return Meeting::kMissed;
  }
  if (!socket) return tl::unexpected(std::move(socket.error()));
  // The name is free again once its owner has left.
  const auto process = socket::process_at(*socket);
  const bool known = process && mine.pid_namespace == theirs.pid_namespace;
  if (known && static_cast<std::uint64_t>(*process) != theirs.pid) {
    return fail(ErrorCode::kPeerGone, "connect with cuda_ipc: process {} answered in place of {}", *process,
                theirs.pid);
  }
  socket_ = std::move(*socket);
  return Meeting::kMet;
}

Status TwinLink::met(bool linked) {
  UniqueFd socket = accept();
  if (!linked) return {};
  if (!socket) return fail(ErrorCode::kProtocol, "a cuda_ipc peer says that it is connected, and is not");
  socket_ = std::move(socket);
  return {};
}

// From its shutdown on nobody is connected to the listener any more, and whoever was is still to be accepted.
UniqueFd TwinLink::accept() {
  const socket::Listener listener = std::move(listener_);
  ::shutdown(listener.socket().get(), SHUT_RD);
  const std::string twin = connectors_name(own_->listener);
  while (UniqueFd socket = socket::accept_local(listener)) {
    if (socket::name_at(socket) == twin) return socket;
  }
  return {};
}

std::unique_ptr<PeerEnd> TwinLink::leave(bool through) {
  UniqueFd socket = listener_ ? accept() : std::move(socket_);
  if (!socket) return nullptr;
  if (through) {
    ::shutdown(socket.get(), SHUT_WR);
  } else {
    const DescriptorChange change;
    const int kept = ::fcntl(socket.get(), F_DUPFD_CLOEXEC, 0);  // stays open until this process ends
    if (kept >= 0) keep_from_children(kept);
  }
  UniqueFd process = socket::watch_process(socket);
  if (!is_open(process, socket)) return nullptr;
  UniqueFd events = UniqueFd::of(::epoll_create1, EPOLL_CLOEXEC);
  if (!watch(events, socket, EPOLLRDHUP) || !watch(events, process, EPOLLIN)) {
    log(LogLevel::kWarning, "{}", system_error("watch the end of a cuda_ipc peer's copies").message);
  }
  return std::make_unique<ProcessEnd>(std::move(events), std::move(socket), std::move(process), nullptr);
}

std::string TwinLink::connectors_name(const Token& listener) const {
  const crypto::Digest digest =
      crypto::MutualProof("p2p cuda_ipc twin", secret_).bind(listener).by(Role::kConnector);
  Token name{};
  std::copy_n(digest.begin(), name.size(), name.begin());
  return name_of(name);
}

}  // namespace p2p::cuda_ipc
