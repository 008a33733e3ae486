// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "drivers/socket/local_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace p2p::socket {
namespace {

// In a folder for its owner alone, from the first moment on: the system makes the file as the socket is.
Result<UniqueFd> open_socket(const Place& place) {
  UniqueFd socket = UniqueFd::of(::socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (!socket || (place.is_folder() && ::fchmod(socket.get(), 0600) != 0)) {
    return tl::unexpected(system_error("open a Unix socket"));
  }
  return socket;
}

// Once for each minute and process: it looks at every name there.
void sweep_now_and_then(const Place& place) {
  constexpr std::chrono::minutes kEvery{1};
  static std::atomic<std::int64_t> next{0};
  const std::chrono::nanoseconds now = std::chrono::steady_clock::now().time_since_epoch();
  std::int64_t due = next.load();
  if (now.count() < due) return;
  if (next.compare_exchange_strong(due, (now + kEvery).count())) place.sweep();
}

tl::unexpected<Error> cannot_connect(const Place& place, int number) {
  constexpr std::string_view kAttempt = "connect to the peer's Unix socket";
  if (!place.is_folder() && number == ECONNREFUSED) {
    return fail(ErrorCode::kPeerGone, "{}: nobody listens (it is in another network namespace, or has ended)",
                kAttempt);
  }
  if (!place.is_folder()) return tl::unexpected(system_error(kAttempt, number));
  if (number == ECONNREFUSED || number == ENOENT) {
    return fail(ErrorCode::kPeerGone, "{}: nobody listens in {} (the peer has ended)", kAttempt,
                place.folder());
  }
  const bool denied = number == EACCES || number == EPERM;
  return tl::unexpected(system_error(
      fmt::format("{} in {}{}", kAttempt, place.folder(), denied ? ", which is another user's" : ""),
      number));
}

Status wait(const UniqueFd& socket, short events, Deadline deadline, std::string_view what) {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd entry{.fd = socket.get(), .events = events, .revents = 0};
    const int count = ::poll(&entry, 1, static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60'000)));
    if (count > 0) return {};
    if (count < 0 && errno != EINTR) return tl::unexpected(system_error("wait for a Unix socket"));
    if (left.count() <= 0)
      return fail(ErrorCode::kTimedOut, "{} a Unix socket: the other side does not answer", what);
  }
}

Result<ucred> credentials_at(const UniqueFd& socket) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return tl::unexpected(system_error("ask for the process at a Unix socket"));
  }
  return credentials;
}

struct Ancillary {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxDescriptors * sizeof(int))> bytes{};
};

std::vector<UniqueFd> take_descriptors(msghdr& message) {
  std::vector<UniqueFd> descriptors;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof fd, sizeof fd);
      descriptors.emplace_back(fd);
    }
  }
  return descriptors;
}

/// recvmsg, and the descriptors that came.
ssize_t receive(const UniqueFd& socket, msghdr& message, std::vector<UniqueFd>& descriptors) {
  const DescriptorChange change;
  const ssize_t size = ::recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC);
  if (size > 0) descriptors = take_descriptors(message);
  return size;
}

}  // namespace

Listener::Listener(Listener&& other) noexcept
    : socket_(std::move(other.socket_)),
      path_(std::exchange(other.path_, {})),
      birthplace_(other.birthplace_) {}

Listener& Listener::operator=(Listener&& other) noexcept {
  if (this == &other) return *this;
  reset();
  socket_ = std::move(other.socket_);
  path_ = std::exchange(other.path_, {});
  birthplace_ = other.birthplace_;
  return *this;
}

void Listener::reset() {
  // In a forked child it is the parent's.
  if (!path_.empty() && !birthplace_.left()) ::unlink(path_.c_str());
  path_.clear();
  socket_.reset();
}

Result<Listener> listen_locally(std::string_view name, const Place& place) {
  if (place.is_folder()) sweep_now_and_then(place);
  Listener listener;
  if (Status opened = move_into(listener.socket_, open_socket(place)); !opened) {
    return tl::unexpected(std::move(opened.error()));
  }
  const LocalName address(place, name);
  const int socket = listener.socket_.get();
  if (::bind(socket, address.get(), address.size) != 0) {
    return tl::unexpected(system_error("listen at a Unix socket"));
  }
  if (place.is_folder()) listener.path_ = place.path_of(name);
  // One process answers for the memory of all its connections: those beyond the queue would be refused.
  if (::listen(socket, SOMAXCONN) != 0) return tl::unexpected(system_error("listen at a Unix socket"));
  return listener;
}

Result<UniqueFd> connect_locally(std::string_view name, std::string_view as, const Place& place) {
  auto socket = open_socket(place);
  if (!socket) return socket;
  const LocalName own(place, as);
  if (!as.empty() && ::bind(socket->get(), own.get(), own.size) != 0) {
    return tl::unexpected(system_error("name a Unix socket"));
  }
  const LocalName address(place, name);
  const bool connected = ::connect(socket->get(), address.get(), address.size) == 0;
  const int number = errno;
  // The socket keeps its name, and nobody connects to it.
  if (!as.empty() && place.is_folder()) ::unlink(place.path_of(as).c_str());
  if (connected) return socket;
  return cannot_connect(place, number);
}

std::string local_name(std::string_view prefix, ByteView token) {
  std::string name(prefix);
  for (const std::byte byte : token) name += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
  return name;
}

UniqueFd accept_local(const Listener& listener) {
  return UniqueFd::of(::accept4, listener.socket().get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
}

Result<uid_t> user_at(const UniqueFd& socket) {
  const auto credentials = credentials_at(socket);
  if (!credentials) return tl::unexpected(credentials.error());
  return credentials->uid;
}

Result<pid_t> process_at(const UniqueFd& socket) {
  const auto credentials = credentials_at(socket);
  if (!credentials) return tl::unexpected(credentials.error());
  if (credentials->pid > 0) return credentials->pid;
  return fail(ErrorCode::kUnavailable, "the peer's process is not visible here (another PID namespace)");
}

UniqueFd watch_process(const UniqueFd& socket) {
  const auto pid = process_at(socket);
  return pid ? UniqueFd::of(::syscall, SYS_pidfd_open, *pid, 0) : UniqueFd();
}

// In a folder the last part of the path: the other process may know the folder under another one.
std::string name_at(const UniqueFd& socket) {
  sockaddr_un address{};
  socklen_t size = sizeof address;
  const bool told = ::getpeername(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0;
  constexpr std::size_t kBefore = offsetof(sockaddr_un, sun_path);
  if (!told || size <= kBefore || size > sizeof address) return {};
  const std::string_view path(address.sun_path, size - kBefore);
  if (path.front() == 0) return std::string(path.substr(1));  // an abstract name
  const std::string_view file = path.substr(0, path.find('\0'));
  return std::string(file.substr(file.rfind('/') + 1));
}

Status send_packet(const UniqueFd& socket, ByteView bytes, std::span<const UniqueFd> descriptors,
                   Deadline deadline) {
  if (descriptors.size() > kMaxDescriptors) {
    return fail(ErrorCode::kInvalidArgument, "send {} descriptors in one packet", descriptors.size());
  }
  Ancillary ancillary;
  iovec data{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = ancillary.bytes.data();
    message.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
    cmsghdr* const part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
    for (std::size_t i = 0; i < descriptors.size(); ++i) {
      const int fd = descriptors[i].get();
      std::memcpy(CMSG_DATA(part) + i * sizeof fd, &fd, sizeof fd);
    }
  }
  for (;;) {
    if (::sendmsg(socket.get(), &message, MSG_NOSIGNAL) >= 0) return {};
    if (errno == EINTR) continue;
    if (errno == EPIPE || errno == ECONNRESET)
      return fail(ErrorCode::kPeerGone, "send on a Unix socket: closed");
    if (errno != EAGAIN) return tl::unexpected(system_error("send on a Unix socket"));
    if (const Status ready = wait(socket, POLLOUT, deadline, "send on"); !ready) return ready;
  }
}

Result<Packet> receive_packet(const UniqueFd& socket, std::size_t most_bytes, std::size_t most_descriptors,
                              Deadline deadline) {
  Packet packet;
  packet.bytes.resize(most_bytes);
  Ancillary ancillary;
  iovec data{packet.bytes.data(), packet.bytes.size()};
  bool ended = false;
  for (;;) {
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = ancillary.bytes.data();
    message.msg_controllen = ancillary.bytes.size();
    const ssize_t size = receive(socket, message, packet.descriptors);
    if (size > 0) {
      packet.bytes.resize(static_cast<std::size_t>(size));
      if ((message.msg_flags & MSG_CTRUNC) != 0) {
        return fail(ErrorCode::kSystem,
                    "receive descriptors: this process may not have so many open (RLIMIT_NOFILE)");
      }
      if ((message.msg_flags & MSG_TRUNC) == 0 && packet.descriptors.size() <= most_descriptors)
        return packet;
      return fail(ErrorCode::kProtocol,
                  "receive on a Unix socket: a packet that is larger than was asked for");
    }
    // Linux may tell of the end ahead of a packet that came before it, so it is asked twice.
    const bool end = size == 0 || errno == ECONNRESET;
    if (end && !std::exchange(ended, true)) continue;
    if (end) return fail(ErrorCode::kPeerGone, "receive on a Unix socket: closed");
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return tl::unexpected(system_error("receive on a Unix socket"));
    if (const Status ready = wait(socket, POLLIN, deadline, "receive on"); !ready) {
      return tl::unexpected(ready.error());
    }
  }
}

}  // namespace p2p::socket
