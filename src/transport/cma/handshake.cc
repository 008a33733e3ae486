// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#include "transport/cma/handshake.h"

#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/process_id.h"
#include "drivers/crypto/mutual_proof.h"
#include "drivers/socket/local_socket.h"

namespace p2p::cma {

namespace {

// `sender` is the process whose memory the token lies in: as the kernel tells it of the socket's other end.
crypto::MutualProof proof_of(const ChannelSetup& setup, pid_t sender, const Token& listener,
                             const MemoryProof& memory) {
  Bytes where;
  ByteWriter writer(where);
  writer.put(static_cast<std::uint32_t>(sender));
  writer.put(memory.token_address);
  crypto::MutualProof proof("p2p cma channel", setup.secret);
  proof.bind(listener).bind(where).bind(memory.token);
  return proof;
}

}  // namespace

Result<Host> Host::here(const socket::Place& place) {
  Host host;
  const auto boot = boot_id();
  if (!boot) return tl::unexpected(boot.error());
  const auto pid = namespace_id("pid");
  if (!pid) return tl::unexpected(pid.error());
  const auto number = place.number();
  if (!number) return tl::unexpected(number.error());
  std::ranges::copy(*boot, host.boot.begin());
  host.pid_namespace = *pid;
  host.place = *number;
  return host;
}

Status Host::meets(const Host& other) const {
  if (other.boot != boot) {
    return fail(ErrorCode::kUnavailable, "connect with cma: the peer is on another host");
  }
  const bool folder = socket::Place::is_folder(place);
  if (other.place != place && (folder || socket::Place::is_folder(other.place))) {
    return fail(ErrorCode::kUnavailable,
                "connect with cma: UCCL_P2P_SOCKET_DIR is not the same folder on both sides");
  }
  if (other.pid_namespace != pid_namespace && !folder) {
    return fail(ErrorCode::kUnavailable,
                "connect with cma: the peer is in another PID namespace, and UCCL_P2P_SOCKET_DIR is not set");
  }
  if (other.place != place) {
    return fail(
        ErrorCode::kUnavailable,
        "connect with cma: the peer is in another network namespace, and UCCL_P2P_SOCKET_DIR is not set");
  }
  return {};
}

Bytes Address::serialize() const {
  Bytes bytes;
  ByteWriter writer(bytes);
  writer.put(as_bytes(std::string_view(host.boot.data(), host.boot.size())));
  writer.put(host.pid_namespace);
  writer.put(host.place);
  writer.put(pid);
  writer.put(ByteView(listener));
  return bytes;
}

Result<Address> Address::parse(ByteView bytes) {
  Address address;
  ByteReader reader(bytes);
  const std::string boot = to_string(reader.take(address.host.boot.size()));
  address.host.pid_namespace = reader.get<std::uint64_t>();
  address.host.place = reader.get<std::uint64_t>();
  address.pid = reader.get<std::uint32_t>();
  const ByteView listener = reader.take(address.listener.size());
  if (!reader.ok() || reader.left() != 0) {
    return fail(ErrorCode::kProtocol, "connect with cma: the peer's address of {} bytes is not one",
                bytes.size());
  }
  std::ranges::copy(boot, address.host.boot.begin());
  std::ranges::copy(listener, address.listener.begin());
  return address;
}

Bytes MemoryProof::serialize(const ChannelSetup& setup, const Token& listener, pid_t sender) const {
  Bytes bytes;
  ByteWriter writer(bytes);
  writer.put(ByteView(proof_of(setup, sender, listener, *this).by(setup.role)));
  writer.put(token_address);
  writer.put(ByteView(token));
  return bytes;
}

std::optional<MemoryProof> MemoryProof::parse(ByteView bytes, const ChannelSetup& setup,
                                              const Token& listener, pid_t sender) {
  MemoryProof proof;
  ByteReader reader(bytes);
  const ByteView mac = reader.take(sizeof(crypto::Digest));
  proof.token_address = reader.get<std::uint64_t>();
  const ByteView token = reader.take(proof.token.size());
  if (!reader.ok() || reader.left() != 0) return std::nullopt;
  std::ranges::copy(token, proof.token.begin());
  if (!proof_of(setup, sender, listener, proof).holds(opposite(setup.role), mac)) return std::nullopt;
  return proof;
}

std::string name_of(const Token& listener) { return socket::local_name("p2p-cma-", listener); }

ssize_t receive_with_descriptor(const UniqueFd& socket, std::span<std::byte> message, UniqueFd& descriptor) {
  // For one descriptor.
  union {
    cmsghdr aligned;
    std::array<std::byte, CMSG_SPACE(sizeof(int))> bytes;
  } room{};
  iovec bytes{message.data(), message.size()};
  msghdr header{};
  header.msg_iov = &bytes;
  header.msg_iovlen = 1;
  header.msg_control = &room;
  header.msg_controllen = CMSG_LEN(sizeof(int));  // the system closes those that do not fit
  const DescriptorChange change;
  const ssize_t size = ::recvmsg(socket.get(), &header, MSG_CMSG_CLOEXEC);
  if (size < 0) return size;
  const cmsghdr* const control = CMSG_FIRSTHDR(&header);
  if (control != nullptr && control->cmsg_level == SOL_SOCKET && control->cmsg_type == SCM_RIGHTS &&
      control->cmsg_len == CMSG_LEN(sizeof(int))) {
    int number = -1;
    std::memcpy(&number, CMSG_DATA(control), sizeof number);
    descriptor = UniqueFd(number);
  }
  return size;
}

namespace {

Status no_access(std::string_view what, pid_t pid, int error_number) {
  const std::string attempt = fmt::format("{} the memory of process {}", what, pid);
  if (error_number == EPERM) {
    return fail(
        ErrorCode::kPermissionDenied,
        "{}: not permitted; both processes must run as the same user, kernel.yama.ptrace_scope must be 0 "
        "(or one have CAP_SYS_PTRACE), and no sandbox (seccomp) forbid process_vm_{}v",
        attempt, what);
  }
  if (error_number == ESRCH) return fail(ErrorCode::kPeerGone, "{}: it has ended", attempt);
  return tl::unexpected(system_error(attempt, error_number));
}

/// Asks whether this process may write to that one, and writes nothing: the address is the system's own,
/// which the system finds out after it has looked at the rights.
Status check_writing(pid_t pid) {
  std::byte none{};
  const iovec local{&none, 1};
  const iovec nowhere{reinterpret_cast<void*>(~std::uintptr_t{0} - 4095), 1};
  if (::process_vm_writev(pid, &local, 1, &nowhere, 1, 0) >= 0 || errno == EFAULT) return {};
  return no_access("write", pid, errno);
}

}  // namespace

Status check_access(pid_t pid, const MemoryProof& proof) {
  Token seen{};
  const iovec local{seen.data(), seen.size()};
  const iovec remote{reinterpret_cast<void*>(proof.token_address), seen.size()};
  const ssize_t size = ::process_vm_readv(pid, &local, 1, &remote, 1, 0);
  if (size < 0) return no_access("read", pid, errno);
  if (size == static_cast<ssize_t>(seen.size()) && seen == proof.token) return check_writing(pid);
  return fail(ErrorCode::kProtocol, "read the memory of process {}: the bytes there are not the peer's", pid);
}

}  // namespace p2p::cma
