// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/unique_fd.h"
#include "drivers/socket/local_place.h"
#include "p2p/result.h"

/// Unix sockets of packets under names that are known at one place of this host alone. Packets carry file
/// descriptors, also between namespaces. None of the sockets blocks.
namespace p2p::socket {

/// More descriptors than this the kernel does not take in one packet.
inline constexpr std::size_t kMaxDescriptors = 253;

/// Listens under a name, which goes with it.
class Listener {
 public:
  Listener() = default;
  Listener(Listener&& other) noexcept;
  Listener& operator=(Listener&& other) noexcept;
  ~Listener() { reset(); }

  explicit operator bool() const { return static_cast<bool>(socket_); }
  const UniqueFd& socket() const { return socket_; }
  void reset();

 private:
  friend Result<Listener> listen_locally(std::string_view name, const Place& place);

  UniqueFd socket_;
  std::string path_;  // of the file, if there is one
  Birthplace birthplace_;
};

/// `name` is free to choose, at most 64 bytes, 45 in a folder. Who connects has a name only if it takes one,
/// `as`. kPeerGone if nobody listens, there or at all.
Result<Listener> listen_locally(std::string_view name, const Place& place = {});
Result<UniqueFd> connect_locally(std::string_view name, std::string_view as = {}, const Place& place = {});

/// `prefix` and the token in hexadecimal digits: a name that nobody finds who is not told the token.
std::string local_name(std::string_view prefix, ByteView token);

/// The next connection; empty if there is none now.
UniqueFd accept_local(const Listener& listener);

/// The process that opened the other end, and the name that it took before it connected, empty if none: the
/// kernel vouches for both. kUnavailable for a process of a PID namespace that is not seen from here.
Result<pid_t> process_at(const UniqueFd& socket);
std::string name_at(const UniqueFd& socket);

/// The user whose process opened the other end.
Result<uid_t> user_at(const UniqueFd& socket);

/// A descriptor of that process, readable once it has ended. Empty where it has ended, or is not seen from
/// here.
UniqueFd watch_process(const UniqueFd& socket);

/// kTimedOut if the other side does not read until then.
using Deadline = std::chrono::steady_clock::time_point;
Status send_packet(const UniqueFd& socket, ByteView bytes, std::span<const UniqueFd> descriptors,
                   Deadline deadline);

struct Packet {
  Bytes bytes;
  std::vector<UniqueFd> descriptors;
};

/// kPeerGone once the other side has closed. kProtocol for a packet of more bytes or descriptors than asked
/// for; kSystem where this process has no room for the descriptors.
Result<Packet> receive_packet(const UniqueFd& socket, std::size_t most_bytes, std::size_t most_descriptors,
                              Deadline deadline);

}  // namespace p2p::socket
