// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <compare>
#include <optional>
#include <span>
#include <string>

#include "base/bytes.h"
#include "base/unique_fd.h"
#include "drivers/socket/local_place.h"
#include "p2p/result.h"
#include "transport/transport.h"

/// How two processes find each other and prove, over a Unix socket, who they are. The kernel vouches for the
/// process at the socket's other end; nothing that a peer merely says decides whose memory is touched.
namespace p2p::cma {

/// Where a process runs.
struct Host {
  std::array<char, 36> boot{};  ///< as boot_id gives it
  std::uint64_t pid_namespace = 0;
  std::uint64_t place = 0;  ///< where its sockets are, as Place::number gives it

  static Result<Host> here(const socket::Place& place = {});

  /// The two meet at a socket; an error says why not. In a folder processes of several PID namespaces meet.
  Status meets(const Host& other) const;
  friend bool operator==(const Host&, const Host&) = default;
};

/// Random bytes: the name of a listening socket, or the proof that the right memory was read.
using Token = std::array<std::byte, 16>;

/// What a channel tells the other through the session.
struct Address {
  Host host;
  std::uint32_t pid = 0;
  Token listener{};  ///< of the acceptor; of a connector, whom nobody dials, kTakesRequests, or zeros

  /// Says that a connector asks for copies, and makes them. Acceptors that do not know of it look at nothing
  /// there.
  static constexpr Token kTakesRequests{std::byte{1}};

  Bytes serialize() const;
  static Result<Address> parse(ByteView bytes);
};

/// The first and only message on the socket, the connector's before the acceptor's.
struct MemoryProof {
  static constexpr std::size_t kBytes = 32 + 8 + sizeof(Token);

  std::uint64_t token_address = 0;  ///< where in the sender's memory `token` lies
  Token token{};

  /// `sender` is this process, or 0 where the two are in different PID namespaces: then the peer may not see
  /// it.
  Bytes serialize(const ChannelSetup& setup, const Token& listener, pid_t sender = ::getpid()) const;

  /// The proof, if these bytes were made with that `sender` as the other end of the session of `setup`.
  static std::optional<MemoryProof> parse(ByteView bytes, const ChannelSetup& setup, const Token& listener,
                                          pid_t sender);
};

/// A socket's name.
std::string name_of(const Token& listener);

/// Receives a message, with a descriptor if one comes and there is room for it: a proof counts without one,
/// too. Answers as recv does.
ssize_t receive_with_descriptor(const UniqueFd& socket, std::span<std::byte> message, UniqueFd& descriptor);

/// Reads the token in the memory of `pid` as transfers will; an error says what forbids it.
Status check_access(pid_t pid, const MemoryProof& proof);

}  // namespace p2p::cma
