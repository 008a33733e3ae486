// Copyright The uccl_p2p authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "base/unique_fd.h"
#include "drivers/socket/address.h"
#include "drivers/socket/poll_set.h"
#include "p2p/result.h"

/// How two channels find each other: the acceptor listens, the connector dials, and both prove that they know
/// the session's secret. Byte tables in docs/wire.md, section "Data streams".
namespace p2p::tcp {

using Token = std::array<std::byte, 16>;
using Nonce = std::array<std::byte, 32>;
using Secret = std::array<std::byte, 32>;
using Clock = std::chrono::steady_clock;

/// What a channel's `address` holds. A connector's has port 0 and no token: nobody dials it.
struct ChannelAddress {
  socket::Address address;
  Token token{};

  Bytes encode() const;
  static Result<ChannelAddress> decode(ByteView bytes);
};

/// One message of the handshake, of known length, as it comes in.
class MessageReader {
 public:
  explicit MessageReader(std::size_t bytes) : bytes_(bytes) {}

  /// True once it is complete; kPeerGone if the stream ends first. Takes no byte that lies behind it.
  Result<bool> receive(int fd);
  ByteView view() const { return bytes_; }

 private:
  Bytes bytes_;
  std::size_t have_ = 0;
};

/// The listening side. Strangers cost it nothing but a bounded number of descriptors for a bounded time.
class Acceptor {
 public:
  static Result<Acceptor> listen(const socket::Address& address, const Secret& secret,
                                 socket::PollSet& polls);

  const ChannelAddress& address() const { return address_; }

  /// Moves on what can be moved. The peer's socket, out of the poll set, once one has proven itself;
  /// listening ends with that. No descriptor before.
  Result<UniqueFd> advance();

  /// Strangers hang on at most until here; call `advance` then.
  Clock::time_point next_deadline() const;

 private:
  struct Pending {
    UniqueFd fd;
    Clock::time_point deadline;
    MessageReader message;
    bool knows_token = false;
    Nonce peer_nonce{};
    Nonce nonce{};
  };

  explicit Acceptor(const Secret& secret, socket::PollSet& polls) : secret_(secret), polls_(&polls) {}
  Status take_waiting();
  void make_room();
  Result<bool> advance(Pending& pending);
  Status answer(Pending& pending);

  Secret secret_;
  socket::PollSet* polls_;
  UniqueFd listener_;
  ChannelAddress address_;
  std::vector<Pending> pending_;
};

/// The dialling side.
class Dialer {
 public:
  static Result<Dialer> dial(const socket::Address& local, const ChannelAddress& peer, const Secret& secret,
                             socket::PollSet& polls);

  /// As of Acceptor. kPermissionDenied if the other side does not know the secret.
  Result<UniqueFd> advance();

 private:
  Dialer(const ChannelAddress& peer, const Secret& secret, socket::PollSet& polls);
  Status greet();

  ChannelAddress peer_;
  Secret secret_;
  socket::PollSet* polls_;
  UniqueFd fd_;
  Nonce nonce_{};
  MessageReader message_;
  bool connected_ = false;
};

}  // namespace p2p::tcp
